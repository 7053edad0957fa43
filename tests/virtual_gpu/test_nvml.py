"""Real nvidia-ml-py on the virtual GPUs of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest
import torch

from . import World, default_uuid

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


def test_what_a_device_says_of_itself(virtual_gpu: World, first: Any) -> None:
    """Each field is the scenario's, in NVML's units, and follows changes."""
    virtual_gpu.set_gpu(0, utilization=93, temperature=71, power=350.5, power_limit=400)
    assert nvml.nvmlDeviceGetName(first) == "NVIDIA H100 80GB HBM3"
    assert nvml.nvmlDeviceGetUUID(first) == default_uuid(0)
    assert nvml.nvmlDeviceGetUtilizationRates(first).gpu == 93
    assert nvml.nvmlDeviceGetTemperature(first, nvml.NVML_TEMPERATURE_GPU) == 71
    assert nvml.nvmlDeviceGetTemperatureV(first, nvml.NVML_TEMPERATURE_GPU) == 71
    assert nvml.nvmlDeviceGetPowerUsage(first) == 350500
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(first) == 400000
    assert nvml.nvmlDeviceGetCudaComputeCapability(first) == (9, 0)
    assert nvml.nvmlDeviceGetPciInfo(first).busId == "00000000:01:00.0"
    assert nvml.nvmlDeviceGetClockInfo(first, nvml.NVML_CLOCK_SM) == 1980
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(first) == 0
    assert nvml.nvmlDeviceGetMigMode(first) == [0, 0]
    assert nvml.nvmlSystemGetDriverVersion() == "580.95.05"
    assert nvml.nvmlSystemGetCudaDriverVersion() == 13000


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


def test_processes_ours_and_theirs(virtual_gpu: World, first: Any) -> None:
    """Our own process with its memory, another one as the scenario says."""
    torch.zeros(1, device="cuda:0")
    virtual_gpu.add_process(0, 42424242, 3 * GIB, "/usr/bin/other")
    processes = {p.pid: p for p in nvml.nvmlDeviceGetComputeRunningProcesses(first)}
    assert processes[os.getpid()].usedGpuMemory == virtual_gpu.used(0, os.getpid())
    assert processes[42424242].usedGpuMemory == 3 * GIB
    assert nvml.nvmlSystemGetProcessName(42424242) == "/usr/bin/other"
    assert nvml.nvmlDeviceGetGraphicsRunningProcesses(first) == []


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("utilization", "UtilizationRates"),
        ("power", "PowerUsage"),
        ("memory", "MemoryInfo"),
        ("processes", "ComputeRunningProcesses"),
    ],
)
def test_unsupported_fields(virtual_gpu: World, first: Any, field: str, call: str) -> None:
    """A field that the hardware lacks is NOT_SUPPORTED, and only that one."""
    virtual_gpu.set_gpu(0, unsupported={field})
    ask = getattr(nvml, f"nvmlDeviceGet{call}")
    assert code(ask, first) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml.nvmlDeviceGetName(first)
    ask(nvml.nvmlDeviceGetHandleByIndex(1))


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
