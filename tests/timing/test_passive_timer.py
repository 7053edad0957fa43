"""GPU time of a cell without waiting before it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpumagic.timing.event_timer import Reading
from gpumagic.timing.passive_timer import PassiveTimer


def measure(timer: PassiveTimer, code: Any) -> tuple[dict[int, Reading], float]:
    """The readings of ``code``, and its host seconds."""
    timer.start()
    started = time.perf_counter()
    code()
    stopped = time.perf_counter()
    return timer.stop(started, stopped), stopped - started


def test_only_devices_with_a_sign_of_work_have_a_reading(gpu_work: Any) -> None:
    timer = PassiveTimer()
    assert measure(timer, lambda: None)[0] == {}
    readings, host = measure(timer, lambda: gpu_work.sleep(0.01))
    assert list(readings) == [0]
    assert readings[0].worked
    assert not readings[0].idle
    assert 0.0098 <= (readings[0].seconds or 0.0) <= 0.0102 + host
    assert list(measure(timer, lambda: gpu_work.sleep(0.01, 1))[0]) == [1]
    assert timer.note is None


def test_earlier_work_is_neither_waited_for_nor_counted(gpu_work: Any) -> None:
    timer = PassiveTimer()
    measure(timer, lambda: None)
    gpu_work.sleep(0.2)
    begun = time.perf_counter()
    readings, host = measure(timer, lambda: gpu_work.sleep(0.01))
    assert host < 0.1
    assert readings[0].seconds == pytest.approx(0.01, rel=0.02)
    assert readings[0].finished - begun >= 0.2
    gpu_work.sleep(0.05)
    readings, _ = measure(timer, lambda: None)
    assert not any(reading.worked for reading in readings.values())


def test_an_allocation_is_a_sign(gpu_work: Any) -> None:
    timer = PassiveTimer()
    readings, _ = measure(timer, lambda: gpu_work.torch.empty(9, device="cuda"))
    assert readings[0].worked
    assert readings[0].idle


def test_a_failing_device_is_a_note(gpu_work: Any, virtual_gpu: Any) -> None:
    timer = PassiveTimer()
    measure(timer, lambda: None)
    virtual_gpu.fault("cudaStreamQuery", 700)
    readings, _ = measure(timer, lambda: None)
    virtual_gpu.reset()
    assert readings == {}
    assert "the GPU cannot be waited for" in str(timer.note)
