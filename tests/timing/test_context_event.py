"""An event behind all work of a context."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest

from gpumagic.cuda import torch_cuda
from gpumagic.timing import context_event
from gpumagic.timing.context_event import ContextEvent, waited_long


def finishes_last(begin: Any, event: ContextEvent, known: float = 0.0) -> bool:
    assert event.known
    event.end.synchronize()
    event.later.synchronize()
    return event.finishes_last(begin, known)


def test_an_idle_context_is_not_busy(gpu_work: Any) -> None:
    begin = torch_cuda.timing_event(gpu_work.torch.cuda.current_stream())
    assert not finishes_last(begin, ContextEvent(0).record())


def test_a_stream_that_is_not_torchs_keeps_the_context_busy(gpu_work: Any) -> None:
    """Also when it has finished before the question."""
    runtime, handle = ctypes.CDLL(None), ctypes.c_void_p()
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    stream = gpu_work.torch.cuda.ExternalStream(handle.value, device="cuda:0")
    begin = torch_cuda.timing_event(gpu_work.torch.cuda.current_stream())
    with gpu_work.torch.cuda.stream(stream):
        gpu_work.sleep(0.05)
    event = ContextEvent(0).record()
    stream.synchronize()
    assert finishes_last(begin, event)
    assert not finishes_last(begin, event, known=0.06)
    assert not finishes_last(begin, ContextEvent(0).record())
    assert runtime.cudaStreamDestroy(handle) == 0


def test_an_older_driver_has_none(
    gpu_work: Any, virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the CPU time of the wait is used: here it is of the virtual clock."""
    virtual_gpu.fault("cuCtxRecordEvent", 801)
    assert not ContextEvent(0).record().known
    monkeypatch.setattr(context_event, "thread_time", time.perf_counter)
    assert not waited_long(0)
    gpu_work.sleep(0.01)
    assert waited_long(0)
