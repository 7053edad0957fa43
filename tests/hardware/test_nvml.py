"""What NVML says, and what we take it for."""

from __future__ import annotations

import os
from typing import Any

import pytest

import gpumagic
from gpumagic.cuda import devices
from tests.hardware.record import Figure

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]


def test_memory_of_version_2_adds_up(figure: Figure) -> None:
    """Used, free and reserved are all there is; version 1 counts the reserve as used."""
    import pynvml as nv

    nv.nvmlInit()
    try:
        handle = nv.nvmlDeviceGetHandleByIndex(0)
        first = nv.nvmlDeviceGetMemoryInfo(handle)
        second = nv.nvmlDeviceGetMemoryInfo(handle, nv.nvmlMemory_v2)
    except nv.NVMLError as error:
        pytest.skip(f"NVML does not tell: {error}")
    finally:
        nv.nvmlShutdown()
    parts = second.used, second.free, second.reserved
    figure("NVML's version 2: total; used, free, reserved", (second.total, parts))
    figure("used of version 1, less used and reserved of 2", first.used - sum(parts[::2]))
    assert second.total == sum(parts)


def test_whether_nvmls_pids_are_ours(torch: Any, figure: Figure) -> None:
    """In a container they may be the host's: recorded, with what we make of it."""
    x = torch.ones(2, device="cuda")
    torch.cuda.synchronize(x.device)
    device = next(d for d in gpumagic.devices() if d.ordinal == 0)
    listed = None if device.processes is None else [p.pid for p in device.processes]
    figure("NVML lists this process", None if listed is None else os.getpid() in listed)
    figure("processes listed", None if listed is None else len(listed))
    figure("in the first pid namespace", devices.in_first_pid_namespace())
    figure("memory: own, others", (device.memory_own, device.memory_others))
    assert device.memory_own is None or device.memory_own > 0
