"""Operations by torch's counter, and energy by NVML's."""

from __future__ import annotations

from typing import Any

import pytest

import gpumagic
from gpumagic.timing.profiler import EnergyMeter, FlopCounter


def test_operations_are_counted_by_shapes(gpu_work: Any) -> None:
    torch = gpu_work.torch
    layer = torch.nn.Linear(8, 16, bias=False, device="cuda")
    counter = FlopCounter()
    with counter:
        y = layer(torch.ones(4, 8, device="cuda"))
        y.sum().backward()
    # Forward, and in the backward pass the gradient of the weight.
    assert counter.count == 2 * (2 * 4 * 8 * 16)
    failed = FlopCounter()
    with pytest.raises(ZeroDivisionError), failed:
        _ = 1 / 0
    assert failed.count is None


def test_joules_are_watts_times_seconds(gpu_work: Any) -> None:
    power = gpumagic.devices()[0].power
    meter = EnergyMeter([0])
    with meter:
        gpu_work.sleep(2.0)
    assert meter.joules == pytest.approx(2.0 * power, rel=0.02)
    assert meter.watts == pytest.approx(power, rel=0.02)
    assert meter.note == "energy of the whole of cuda:0, idle power and other processes included"


def test_why_there_is_no_energy(gpu_work: Any, virtual_gpu: Any) -> None:
    virtual_gpu.fault("nvmlDeviceGetTotalEnergyConsumption", 3)
    meter = EnergyMeter([0])
    with meter:
        pass
    assert meter.joules is meter.watts is None
    assert meter.note == "no energy: NVML has no counter for this device"
