"""Work of known duration is reported with that duration, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import gpumagic
from gpumagic.timing import waits
from gpumagic.timing.event_timer import read, start, stop
from gpumagic.timing.run_times import Times
from gpumagic.timing.summary import LOADED
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND, virtual_clock


@pytest.mark.parametrize(
    "slow", ["cudaDeviceSynchronize", "cudaEventRecord", "cudaEventQuery", "cudaStreamQuery"]
)
def test_a_busy_host_is_no_gpu_work(
    slow: str, gpu_work: Any, virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call is slow: an idle device's time is no exact one."""
    monkeypatch.setattr(waits, "thread_time", time.thread_time)
    with gpumagic.cudatime() as timed:
        gpu_work.sleep(0.005)
        virtual_gpu.slow(slow, 0.02)
    # Work that ends before the first question leaves no sign.
    assert timed.gpu.median >= 0.98 * 0.005
    assert timed.gpu_at_most or timed.gpu.median <= 1.06 * 0.005
    assert 1 not in timed.per_device
    assert timed.limited_by != "host"


@pytest.mark.free
@pytest.mark.parametrize(
    "code",
    [
        lambda torch: time.sleep(0.01),
        lambda torch: torch.ones(64, 64) @ torch.ones(64, 64),
        lambda torch: torch.cuda.synchronize(),
    ],
)
def test_without_a_sign_of_work_it_is_not_said_that_there_was_none(
    code: Callable[[Any], Any], gpu_work: Any
) -> None:
    """Neither in a single run nor in repeated ones: the two agree. No device is named."""
    with gpumagic.cudatime() as timed:
        code(gpu_work.torch)
    repeated = gpumagic.cudatime(lambda: code(gpu_work.torch), n=2, r=3, w=1)
    for timing in (timed.result, repeated):
        assert (timing.gpu_seen, timing.gpu_at_most, timing.per_device) == (False, True, {})
        assert timing.gpu_at_least is None
        assert timing.gpu.median <= timing.wall.median + 100e-6
        shown = [line for line in str(timing).splitlines() if "no GPU work seen (≤ " in line]
        assert shown == str(timing).splitlines()[:1]
    assert len(str(timed.result).splitlines()) == 1


def test_nothing_is_waited_for_while_a_graph_is_captured(gpu_work: Any) -> None:
    torch = gpu_work.torch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), gpumagic.cudatime() as timed:
        gpu_work.sleep(0.001)
    assert timed.gpu is None
    assert "captured" in timed.gpu_note
    with gpumagic.cudatime() as timed:
        graph.replay()
    assert timed.gpu.median >= 0.98 * 0.001


def test_nested(gpu_work: Any) -> None:
    with gpumagic.cudatime() as outer:
        gpu_work.sleep(0.02)
        with gpumagic.cudatime() as inner:
            gpu_work.sleep(0.01)
    assert inner.gpu.median <= 0.0102 + inner.host.median
    assert outer.gpu.median >= 0.98 * 0.01


def test_a_device_that_cannot_be_waited_for(gpu_work: Any, virtual_gpu: Any) -> None:
    """The block's own work is unaffected, and one line says what is missing."""
    done = []
    with gpumagic.cudatime() as timed:
        virtual_gpu.fault("cudaStreamQuery", 700)
        done.append(1)
    virtual_gpu.reset()
    assert done
    assert timed.gpu is None
    assert "the GPU cannot be waited for" in timed.gpu_note


@pytest.mark.free
@pytest.mark.own_process  # where no other test has used GPU 3
@pytest.mark.usefixtures("virtual_gpu")
def test_a_device_that_is_first_used_inside_is_bounded_and_named() -> None:
    import torch

    def late() -> None:
        time.sleep(0.01)
        torch.cuda._sleep(SLEEP_CYCLES_PER_SECOND // 100)

    torch.zeros(1, device="cuda:0")
    for is_first in (True, False):  # kernels may be loaded in it
        assert (LOADED in str(gpumagic.cudatime(late, n=1, r=1))) is is_first
    with virtual_clock():
        with gpumagic.cudatime() as timed:
            torch.cuda._sleep(SLEEP_CYCLES_PER_SECOND // 100)
            time.sleep(0.01)
            with torch.cuda.device(3):
                torch.cuda._sleep(SLEEP_CYCLES_PER_SECOND // 100)
        counts = iter(range(9))

        def code() -> None:
            torch.cuda._sleep(SLEEP_CYCLES_PER_SECOND // 100)
            if next(counts) == 2:
                torch.zeros(1, device="cuda:2")

        repeated = gpumagic.cudatime(code, n=1, r=4, w=0)
        torch.cuda.synchronize(0)
    assert 0.98 * 0.02 <= timed.gpu.median <= 0.025
    assert timed.gpu_at_most
    assert "starting CUDA on cuda:3, first used" in timed.gpu_note
    assert list(timed.per_device) == [3], "the other one was done"
    assert not repeated.gpu_at_most
    assert [len(sample.all) for sample in repeated.per_device.values()] == [4, 4]
    assert list(repeated.per_device) == [0, 2]
    assert repeated.per_device[2].all[:2] == (0.0, 0.0), "it was not in use"


# --- a cell that is not disturbed ----------------------------------------------------------------


def measure(code: Any) -> Times:
    """The times of ``code`` as a cell's."""
    started = start(quiet=True)
    code()
    return read(stop(started))


def test_an_allocation_between_the_cells_is_no_sign_of_the_next(gpu_work: Any) -> None:
    """A thread, a task or a widget has made it."""
    measure(lambda: None)
    gpu_work.torch.empty(999, device="cuda")
    assert not measure(lambda: None).signs
    assert {*measure(lambda: gpu_work.torch.empty(999, device="cuda")).signs} == {0}


@pytest.mark.own_process  # where no other test has taken a stream
@pytest.mark.usefixtures("virtual_gpu")
def test_streams_are_asked_once_one_of_their_pool_was_handed_out(virtual_gpu: Any) -> None:
    import torch

    def asked() -> int:
        before = int(virtual_gpu.calls("cudaStreamQuery"))
        measure(lambda: None)
        return int(virtual_gpu.calls("cudaStreamQuery")) - before

    torch.zeros(1, device="cuda:0")
    measure(lambda: None)
    assert asked() == 2, "the current one, before and after the cell"
    stream = torch.cuda.Stream(0, priority=-1)
    assert asked() == 2 * (1 + 32)
    assert measure(lambda: torch.cuda.current_stream().wait_stream(stream)).note is None
    streams = {torch.cuda.Stream(0, priority=-1).cuda_stream for _ in range(31)}
    assert stream.cuda_stream not in streams, "the user's are not given to anybody else"
