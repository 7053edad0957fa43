"""Real nvidia-ml-py on the virtual GPUs of this process."""

from __future__ import annotations

from typing import Any

import pynvml
import torch

from . import World

GIB = 2**30
nvml: Any = pynvml


def test_both_versions_of_memory(virtual_gpu: World) -> None:
    """The first counts the driver's reserve as used, the second apart."""
    nvml.nvmlInit()
    first = nvml.nvmlDeviceGetHandleByIndex(0)
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
    nvml.nvmlShutdown()
