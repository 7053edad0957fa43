"""What is said of runs: of which evidence, and of devices that are not CUDA's."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

import gpumagic
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.timing.run_times import Queued, Reading, Times
from gpumagic.timing.summary import LOADED, summarize


def test_cpu_time_that_was_used_is_counted() -> None:
    """And what reading the clocks and the events take is not."""
    for used in (0.0, 20e-6, 2e-3):
        with gpumagic.cudatime() as timed:
            until = process_time() + used
            while process_time() < until:
                pass
        assert 0.99 * used <= timed.cpu.median < used + 0.1


def test_a_device_that_is_not_cudas_is_not_waited_for_and_that_is_said(
    gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = gpu_work.torch
    monkeypatch.setattr(torch_cuda, "built_with_cuda", lambda: False)
    says = "no GPU time: this torch is built without CUDA"
    for available, more in ((False, ""), (True, "; the wall time does not wait for mps")):
        monkeypatch.setattr(torch.mps, "is_available", lambda found=available: found)
        found = summarize([Times(1.0, 0.0, 1.0, 1.0)])
        assert (found.gpu, found.gpu_note) == (None, says + more)


# --- each sentence, and the evidence that it needs ------------------------------------------------


def times(lower: float, upper: float, host: float = 1.0, **reading: Any) -> Times:
    readings = {0: Reading(lower, upper, **reading)}
    return Times(host, 0.0, max(host, lower), max(host, upper), readings)


SURE = times(0.96, 1.0, 0.04, sign=True)
OPEN = times(0.4, 1.0, 0.6, sign=True)
NO_SIGN = times(0.0, 1.0)
MAYBE = times(0.0, 1.0, maybe=True)
#: It may have lasted from 0.1 to 1 s.
LOOSE = Times(0.1, 0.0, 0.1, 1.0, {0: Reading(0.0, 1.0, sign=True)})
NEW = times(0.0, 1.0, sign=True, new=True)

#: A part of what is said; the runs of which it is said, and of all others it is not.
SAID: dict[str, tuple[Times, ...]] = {
    "the GPU may have waited for Python": (OPEN,),
    "no GPU work seen (≤ 1.00 s)": (NO_SIGN, MAYBE),
    "another library may have used the GPU": (MAYBE,),
    "includes starting CUDA on cuda:0, first used in this cell": (NEW,),
    "≤": (OPEN, NO_SIGN, MAYBE, NEW),
    ", at least": (OPEN,),
}


@pytest.mark.usefixtures("gpu_work")
@pytest.mark.parametrize("said", SAID)
def test_what_is_said_of_a_single_run(said: str) -> None:
    for found in (SURE, OPEN, NO_SIGN, MAYBE, NEW):
        assert (said in str(summarize([found]))) == (found in SAID[said]), found
    assert "may have waited" not in str(summarize([OPEN] * 2 + [SURE] * 3)), "the median is sure"


@pytest.mark.usefixtures("gpu_work")
def test_the_first_run_may_have_loaded_kernels() -> None:
    first = times(0.4, 1.0, 0.6, sign=True, first=True)
    assert LOADED in str(summarize([first]))
    assert LOADED not in str(summarize([OPEN]))
    sure = times(0.96, 1.0, 0.04, sign=True, first=True)
    assert LOADED not in str(summarize([sure])), "that was no 5 % of it"
    assert LOADED not in str(summarize([first] * 2)), "that was in the warm-up"
    readings = {0: Reading(0.4, 1.0, sign=True), 1: Reading(0.0, 1.0, first=True)}
    other = summarize([Times(1.0, 0.0, 1.0, 1.0, readings)])
    assert LOADED not in str(other), "cuda:1 has a context, and did nothing"


@pytest.mark.usefixtures("gpu_work")
@pytest.mark.parametrize(
    ("runs", "own", "bound", "percent"),
    [
        ([SURE] * 3, None, "gpu", "96 %"),
        ([SURE] * 2 + [OPEN], None, "gpu", "96 %"),
        ([OPEN] * 2 + [SURE], None, None, ""),
        ([NO_SIGN], None, None, ""),
        ([NO_SIGN] * 3, 0.004, "host", "< 1 %"),
        ([NO_SIGN] * 3, 0.89, "host", "89 %"),
        ([NO_SIGN] * 3, 0.91, "gpu", "91 %"),
        ([OPEN] * 3, 1.02, "gpu", "100 %"),
        ([LOOSE] * 3, 0.6, None, ""),
    ],
)
def test_what_limits_the_code(
    runs: list[Times], own: float | None, bound: str | None, percent: str
) -> None:
    queued = None if own is None else Queued((own,) * 3, 1, 0, events=0.001)
    found = summarize(runs, own=queued)
    assert found.limited_by == bound
    assert percent in str(found.limit_evidence)
    assert found.gpu_at_most == (bound is None and queued is None)
    if queued is not None:
        assert found.gpu == queued.sample == found.per_device[0]
        assert found.gpu_at_least.median == pytest.approx(own - 0.001)


@pytest.mark.usefixtures("gpu_work")
def test_one_of_several_devices_may_have_waited_for_another() -> None:
    readings = {0: Reading(0.3, 0.3, sign=True), 1: Reading(0.99, 1.0, sign=True), 2: Reading(0, 1)}
    found = summarize([Times(0.1, 0.0, 1.0, 1.0, readings)])
    assert isinstance(found, CudaTiming)
    assert not found.gpu_at_most
    assert {*found.per_device} == {0, 1}
    assert "1.00 s on 2 devices · cuda:0 ≤ 300 ms, cuda:1 ≤ 1.00 s · wall 1.00 s" in str(found)
