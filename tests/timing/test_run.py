"""Aggregates of runs."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

from gpumagic.cuda import torch_cuda
from gpumagic.results.timing import NO_SIGN
from gpumagic.timing.event_timer import Reading
from gpumagic.timing.run import (
    ENDED,
    NO_SIGN_OF_WORK,
    Run,
    Stopwatch,
    _first_used,
    compiled_frames,
    counted,
    not_counted,
    summarize,
    without_unseen_work,
)

UNKNOWN = Reading(None, idle=False, worked=True, finished=1.0)


def test_devices_that_are_first_used_are_listed() -> None:
    known = Reading(0.5, idle=False, worked=True, finished=1.0)
    run = Run(1.0, 1.0, 0.0, {0: known, 1: UNKNOWN, 2: UNKNOWN})
    assert _first_used(run, [1]) == "cuda:1 was first used"
    assert _first_used(run, [1, 2]) == "cuda:1 and cuda:2 were first used"
    assert _first_used(Run(1.0, 1.0, 0.0, {1: UNKNOWN}), [1]) == "CUDA was initialised"


@pytest.mark.usefixtures("gpu_work")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_repeat_is_named_in_which_a_device_was_first_used(place: int) -> None:
    known = Reading(0.5, idle=False, worked=True, finished=1.0)
    before, after = {0: known}, {0: known, 1: known}
    readings = [*[before] * place, {0: known, 1: UNKNOWN}, *[after] * (3 - place)]
    found = summarize([Run(1.0, 0.1, 0.0, each) for each in readings])
    assert found.gpu is not None
    assert len(found.gpu.all) == 3
    assert f"cuda:1 was first used during repeat {place + 1}: " in str(found.gpu_note)


def test_cpu_time_that_was_used_is_counted() -> None:
    """And what reading the clocks and the events take is not."""
    watch = Stopwatch()
    for used in (0.0, 20e-6, 2e-3):
        watch.start()
        until = process_time() + used
        while process_time() < until:
            pass
        assert 0.99 * used <= watch.stop().cpu < used + 0.1


def test_a_device_without_a_sign_of_work_has_no_gpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until lines show some: the time is there with a note, and then is left out."""
    monkeypatch.setattr(torch_cuda, "current_device", lambda: 0)
    monkeypatch.setattr("gpumagic.timing.run.conditions", lambda *_: None)
    reading = Reading(0.01, idle=True, worked=False, finished=0.0)
    found = summarize([Run(wall=1.0, host=1.0, cpu=0.0, readings={0: reading})])
    assert found.gpu is not None
    assert found.gpu_at_most
    assert found.gpu_note == NO_SIGN
    shown = without_unseen_work(found)
    assert (shown.gpu, shown.per_device) == (None, {})
    assert shown.gpu_note.startswith(NO_SIGN_OF_WORK)
    seen = Reading(0.01, idle=True, worked=True, finished=0.0)
    found = summarize([Run(wall=1.0, host=1.0, cpu=0.0, readings={0: seen})])
    assert without_unseen_work(found) is found
    assert found.gpu_note == ENDED


def test_a_device_that_is_not_cudas_is_not_waited_for_and_that_is_said(
    gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = gpu_work.torch
    monkeypatch.setattr(torch_cuda, "built_with_cuda", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    says = "no GPU time: this torch is built without CUDA"
    for available, more in ((False, ""), (True, "; the wall time does not wait for mps")):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda found=available: found)
        found = summarize([Run(wall=1.0, host=1.0, cpu=0.0, readings={})])
        assert (found.gpu, found.gpu_note) == (None, says + more)


def test_frames_are_counted(gpu_work: Any) -> None:
    torch = gpu_work.torch
    before = compiled_frames()
    compiled = torch.compile(lambda x: x * 2 + 1, backend="eager")
    compiled(torch.ones(3))
    assert compiled_frames() == before + 1
    compiled(torch.ones(3))
    assert compiled_frames() == before + 1


def test_the_notes() -> None:
    assert counted(0) == not_counted([]) == ()
    (note,) = counted(2)
    assert note.startswith("torch.compile compiled 2 functions in this run; TORCH_LOGS=recompiles")
    (note,) = not_counted([3.0])
    assert note.startswith("torch.compile compiled in the first run, not counted: 3 s; ")
    (note,) = not_counted([3.0, 1.0])
    assert note.startswith("torch.compile compiled in 2 runs, not counted: 3 s, 1 s; ")
