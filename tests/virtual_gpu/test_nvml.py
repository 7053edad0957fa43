"""Real nvidia-ml-py on the virtual GPUs of this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pynvml
import pytest
import torch

from . import World

GIB = 2**30
nvml: Any = pynvml


@pytest.fixture(autouse=True)
def _initialized(virtual_gpu: World) -> Iterator[None]:
    nvml.nvmlInit()
    yield
    virtual_gpu.reset()
    nvml.nvmlShutdown()


@pytest.fixture
def first() -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(0)


def code(call: Any, *arguments: Any) -> int:
    with pytest.raises(nvml.NVMLError) as raised:
        call(*arguments)
    return int(raised.value.value)


def test_both_versions_of_memory(virtual_gpu: World, first: Any) -> None:
    """The first counts the driver's reserve as used, the second apart."""
    torch.cuda.empty_cache()
    block = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda:0")
    while True:  # a process that an earlier test has ended may still hold its context
        used = virtual_gpu.used(0)
        old = nvml.nvmlDeviceGetMemoryInfo(first)
        new = nvml.nvmlDeviceGetMemoryInfo(first, version=nvml.nvmlMemory_v2)
        if used == virtual_gpu.used(0):
            break
    assert used > block.nbytes
    assert (new.total, new.used, new.reserved) == (80 * GIB, used, GIB // 2)
    assert old.used == used + GIB // 2
    assert old.total == old.used + old.free == new.used + new.free + new.reserved


def test_faults(virtual_gpu: World, first: Any) -> None:
    """At once, after a number of calls, for a number of calls, for all of a prefix."""
    virtual_gpu.fault("nvmlDeviceGetPowerUsage", 4)
    assert code(nvml.nvmlDeviceGetPowerUsage, first) == nvml.NVML_ERROR_NO_PERMISSION
    virtual_gpu.fault("nvmlDeviceGetFanSpeed", 999, after=2, times=1)
    nvml.nvmlDeviceGetFanSpeed(first)
    nvml.nvmlDeviceGetFanSpeed(first)
    assert code(nvml.nvmlDeviceGetFanSpeed, first) == nvml.NVML_ERROR_UNKNOWN
    nvml.nvmlDeviceGetFanSpeed(first)
    virtual_gpu.clear_faults()
    nvml.nvmlDeviceGetPowerUsage(first)
    virtual_gpu.fault("nvml*", 18)
    assert code(nvml.nvmlDeviceGetUUID, first) == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    assert code(nvml.nvmlInit) == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
