"""Joules by NVML's counter: those of the virtual GPU's power over its clock."""

from __future__ import annotations

from typing import Any

import pytest

import gpumagic
from gpumagic.timing.energy import EnergyMeter


def measured(gpu_work: Any, seconds: float, ordinals: tuple[int, ...] = (0,)) -> Any:
    with EnergyMeter(ordinals) as meter:
        for ordinal in ordinals:
            gpu_work.sleep(seconds, ordinal)
    return meter.found


def watts(ordinal: int = 0) -> float:
    power = gpumagic.devices()[ordinal].power
    assert power is not None
    return power


def test_joules_are_watts_times_seconds(gpu_work: Any) -> None:
    found = measured(gpu_work, 2.0)
    assert found.joules == pytest.approx(2.0 * watts(), rel=0.02)
    assert found.watts == pytest.approx(watts(), rel=0.02)
    assert "the whole cuda:0" in found.note
    both = measured(gpu_work, 2.0, (0, 1))
    assert both.joules == pytest.approx(2.0 * (watts() + watts(1)), rel=0.02)


def test_less_than_a_step_is_no_figure(gpu_work: Any) -> None:
    """A difference of 0 is not 0 J: it is too short."""
    for _ in range(5):  # one of them lies within a step
        found = measured(gpu_work, 0.001)
        if found.joules is None:
            break
    assert found.joules is None
    assert "less than the counter's step" in found.note


def test_no_figure_per_loop_beside_another_process(gpu_work: Any, virtual_gpu: Any) -> None:
    virtual_gpu.add_process(0, 42424242, 2**30)
    found = measured(gpu_work, 2.0)
    assert found.joules is None
    assert found.watts == pytest.approx(watts(), rel=0.02)
    assert "other processes" in found.note


def test_a_device_without_a_counter(gpu_work: Any, virtual_gpu: Any) -> None:
    virtual_gpu.fault("nvmlDeviceGetTotalEnergyConsumption", 3)
    found = measured(gpu_work, 2.0)
    assert (found.joules, found.watts) == (None, None)
    assert "no counter for cuda:0" in found.note
