"""An event behind all work of a context."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest

from gpumagic.timing import context_event
from gpumagic.timing.context_event import ContextEvent, waited_long


def test_an_idle_context_is_not_busy(gpu_work: Any) -> None:
    event = ContextEvent(0)
    assert event.known
    assert not event.is_busy()


def test_a_stream_that_is_not_torchs_keeps_the_context_busy(gpu_work: Any) -> None:
    runtime, handle = ctypes.CDLL(None), ctypes.c_void_p()
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    stream = gpu_work.torch.cuda.ExternalStream(handle.value, device="cuda:0")
    with gpu_work.torch.cuda.stream(stream):
        gpu_work.sleep(0.05)
    event = ContextEvent(0)
    assert event.is_busy()
    stream.synchronize()
    assert not event.is_busy()
    assert runtime.cudaStreamDestroy(handle) == 0


def test_an_older_driver_has_none(
    gpu_work: Any, virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the CPU time of the wait is used: here it is of the virtual clock."""
    virtual_gpu.fault("cuCtxRecordEvent", 801)
    assert not ContextEvent(0).known
    monkeypatch.setattr(context_event, "thread_time", time.perf_counter)
    assert not waited_long(0)
    gpu_work.sleep(0.01)
    assert waited_long(0)
