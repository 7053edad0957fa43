"""Timers do not end the capture of a CUDA graph; graphs that were captured are counted."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

import gpumagic
from gpumagic.cuda.pytorch import graph_captures
from gpumagic.timing.event_timer import CAPTURE, read, start, stop
from gpumagic.timing.run_times import Times
from tests.support.captures import capture_elsewhere


def test_another_threads_capture_survives_the_timer(gpu_work: Any) -> None:
    torch = gpu_work.torch
    torch.cuda.synchronize()
    with capture_elsewhere(torch):
        with gpumagic.cudatime() as timed:
            gpu_work.sleep(0.001)
        repeated = gpumagic.cudatime(lambda: gpu_work.sleep(0.001), n=1, r=2)
    assert timed.gpu is None
    assert "captured" in timed.gpu_note
    assert timed.wall.median > 0
    assert repeated.gpu is None


def test_a_capture_that_begins_meanwhile_survives(gpu_work: Any) -> None:
    captured = capture_elsewhere(gpu_work.torch)
    with gpumagic.cudatime() as timed:
        gpu_work.torch.cuda.synchronize()
        captured.__enter__()
    captured.__exit__(None, None, None)
    assert timed.gpu is None


def around_a_cell(cell: Callable[[], object]) -> Times:
    started = start(quiet=True)
    cell()
    return read(stop(started))


def test_another_threads_capture_survives_the_automatic_mode(gpu_work: Any) -> None:
    around_a_cell(lambda: None)
    with capture_elsewhere(gpu_work.torch):
        idle = around_a_cell(lambda: None)
        busy = around_a_cell(lambda: gpu_work.sleep(0.001))
        other_device = around_a_cell(lambda: gpu_work.sleep(0.001, device=1))
    assert [idle.note, busy.note, other_device.note] == [CAPTURE, CAPTURE, CAPTURE]
    for device in range(2):  # nothing was waited for meanwhile
        gpu_work.torch.cuda.synchronize(device)
    assert around_a_cell(lambda: gpu_work.sleep(0.001)).note is None


def test_a_capture_in_a_stream_context_that_was_left(gpu_work: Any) -> None:
    torch = gpu_work.torch
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
    with gpumagic.cudatime() as timed:
        pass
    assert graph_captures.under_way((0, 1))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1000)
        graph.capture_end()
    assert "captured" in timed.gpu_note
    assert not graph_captures.under_way((0, 1))
    graph.replay()


def mode_of_this_thread() -> int:
    """The thread's mode by the driver itself, which is put back: 0 is global, 2 relaxed."""
    library, mode = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    assert library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
    found = mode.value
    assert library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
    return found


def test_no_thread_is_left_relaxed(torch: Any, virtual_gpu: Any) -> None:
    """By an error in the scope, an exchange that fails, or an interrupt right after it."""
    torch.cuda.init()
    with graph_captures.Relaxed():
        assert mode_of_this_thread() == 2
    with pytest.raises(ZeroDivisionError), graph_captures.Relaxed():
        _ = 1 / 0
    assert mode_of_this_thread() == 0
    virtual_gpu.fault("cuThreadExchangeStreamCaptureMode", 999, times=1)
    with graph_captures.Relaxed():
        assert mode_of_this_thread() == 0
    assert mode_of_this_thread() == 0

    class Interrupted(graph_captures.Relaxed):
        def _exchange(self) -> int:
            super()._exchange()
            if self._mode.value == 0:  # it is relaxed now
                raise KeyboardInterrupt
            return 0

    with pytest.raises(KeyboardInterrupt), Interrupted():
        raise AssertionError("the scope was entered")
    assert mode_of_this_thread() == 0
