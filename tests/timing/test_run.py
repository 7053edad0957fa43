"""Aggregates of runs, and their text."""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import Any

import pytest

from gpumagic.cuda import machine, torch_cuda
from gpumagic.results import CellTiming, CudaTiming, Sample
from gpumagic.results.timing import NO_SIGN
from gpumagic.system import cpu_wait
from gpumagic.timing.event_timer import Reading
from gpumagic.timing.run import (
    ENDED,
    HELD_UP,
    NO_SIGN_OF_WORK,
    Run,
    Stopwatch,
    _first_used,
    summarize,
    without_unseen_work,
)


def timing(**fields: Any) -> CudaTiming:
    one = Sample((0.0123,))
    return CudaTiming(**{"gpu": one, "wall": one, "cpu": one, **fields})


def test_devices_that_are_first_used_are_listed() -> None:
    unknown = Reading(None, idle=True, worked=True, finished=1.0)
    run = Run(1.0, 1.0, 0.0, 0.0, {0: replace(unknown, seconds=0.5), 1: unknown})
    assert _first_used(run, [0, 1]) == "cuda:1 was first used"
    readings = dict.fromkeys((1, 2, 3), unknown)
    run = replace(run, readings={**run.readings, **readings})
    assert _first_used(run, [0, 1, 2]) == "cuda:1 and cuda:2 were first used"
    assert _first_used(run, [0, 1, 2, 3]) == "cuda:1, cuda:2 and cuda:3 were first used"


@pytest.mark.parametrize(("seconds", "says"), [(0.030, ENDED), (0.054, HELD_UP)])
@pytest.mark.usefixtures("gpu_work")
def test_a_gpu_that_was_asked_late_was_not_done_with_the_code(seconds: float, says: str) -> None:
    reading = Reading(seconds, idle=True, worked=True, finished=seconds)
    found = summarize([Run(seconds, 0.029, 0.0, 0.0, {0: reading})])
    assert found.gpu_at_most
    assert found.gpu_note == says


def test_a_single_run_in_text() -> None:
    shown = str(
        timing(
            gpu=Sample((0.05,)),
            wall=Sample((0.0502,)),
            cpu=Sample((2e-5,)),
            cpu_user=Sample((1.5e-5,)),
            cpu_system=Sample((5e-6,)),
            host=Sample((3e-5,)),
            per_device={0: Sample((0.05,))},
            show_rows=True,
        )
    )
    assert shown.splitlines() == [
        "GPU   50.0 ms  cuda:0",
        "Wall  50.2 ms",
        "CPU   20.0 µs  user 15.0 µs, sys 5.00 µs",
        "Host  30.0 µs  until the code returned",
    ]


def test_several_devices_in_text() -> None:
    shown = str(timing(per_device={0: Sample((0.0123,)), 3: Sample((0.005,))}, show_rows=True))
    assert "  cuda:0  12.3 ms" in shown
    assert "  cuda:3  5.00 ms" in shown


def test_no_gpu_in_text() -> None:
    without = timing(gpu=None, gpu_note="no GPU time: torch is not imported", show_rows=True)
    lines = str(without).splitlines()
    assert lines[0].split() == ["GPU", "–"]
    assert lines[-1] == "no GPU time: torch is not imported"


def test_repeats_in_text() -> None:
    sample = Sample((0.001, 0.002, 0.003, 0.004))
    lines = str(timing(gpu=sample, wall=sample, loops=10, repeat=4)).splitlines()
    assert lines[0].split() == ["Per", "loop", "Median", "IQR", "Min", "Max", "Mean", "±", "std"]
    assert lines[2].split()[:9] == ["GPU", "2.50", "ms", "1.50", "ms", "1.00", "ms", "4.00", "ms"]
    assert "4 repeats, 10 loops each" in lines


def test_cpu_time_below_the_resolution_of_the_clock() -> None:
    """Neither "0 s" nor "0.00 ns": it is less than the clock counts."""
    assert str(CellTiming(3, "x", wall=0.5, host=0.5, cpu=0.0)) == "wall 500 ms · CPU < 1 µs"
    for cpu in (0.0, 3e-18):
        run = Run(wall=0.5, host=0.5, user=cpu, system=0.0, readings={})
        assert "< 1 µs  user < 1 µs, sys < 1 µs" in str(replace(summarize([run]), show_rows=True))
        repeated = " ".join(str(summarize([run] * 3, loops=100)).split())
        assert f"CPU {'< 10 ns ' * 5}± < 10 ns" in repeated
    run = Run(wall=0.5, host=0.5, user=1e-6, system=0.0, readings={})
    assert "1.00 µs  user 1.00 µs, sys < 1 µs" in str(replace(summarize([run]), show_rows=True))


def test_cpu_time_that_was_used_is_counted() -> None:
    """Whatever reading the clocks and the events take: by the same clock as the code's own."""
    watch = Stopwatch()
    for used in [*[20e-6] * 50, 2e-3]:
        watch.start()
        until = process_time() + used
        while process_time() < until:
            pass
        run = watch.stop()
        assert run.user + run.system >= 0.99 * used
        assert all(part == 0 or part >= 1e-9 for part in (run.user, run.system)), "as a clock's"


def test_a_device_without_a_sign_of_work_has_no_gpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events with nothing between them are some microseconds apart."""
    monkeypatch.setattr(torch_cuda, "current_device", lambda: 0)
    monkeypatch.setattr(machine, "conditions", lambda *_: None)
    for seconds, is_known in ((9.86e-6, False), (0.01, True)):
        reading = Reading(seconds, idle=True, worked=False, finished=0.0)
        run = Run(wall=1.0, host=1.0, user=0.0, system=0.0, readings={0: reading})
        found = summarize([run])
        assert (found.gpu is not None) == is_known
        assert found.gpu_note is not None
        assert "no sign" in found.gpu_note
        assert (found.gpu_note == NO_SIGN) == is_known
        shown = without_unseen_work(found)
        assert (shown.gpu, shown.per_device, shown.gpu_note) == (None, {}, NO_SIGN_OF_WORK)
    seen = summarize([replace(run, readings={0: replace(reading, worked=True)})])
    assert without_unseen_work(seen) is seen
    assert seen.gpu is not None


def test_the_waiting_for_a_cpu_is_that_of_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = {"1": 0}
    monkeypatch.setattr(cpu_wait, "counters", lambda: dict(waited))
    watch, runs = Stopwatch(), []
    for seconds in (2, 0, 4):
        waited["1"] += 10**9  # between the runs
        watch.start()
        waited["1"] += seconds * 10**9
        runs.append(watch.stop())
    assert [run.waited for run in runs] == [2.0, 0.0, 4.0]
    found = summarize(runs, loops=2)
    assert found.cpu_wait == Sample((1.0, 0.0, 2.0))
    assert summarize([*runs, replace(runs[0], waited=None)]).cpu_wait is None
