"""What is left of the GPU when a process executes itself, as ``%gpu … --restart`` does."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.hardware.record import Figure
from tests.support.kernels import Kernel

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

MIB = 2**20


USED = """
import gpumagic
def used():
    return {d.uuid: d.memory_used for d in gpumagic.devices(processes=False)}
"""
TAKE = """
import torch
total = torch.cuda.get_device_properties(0).total_memory
x = torch.ones(min(4 * 2**30, total // 10), dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
where = next(d.uuid for d in gpumagic.devices(processes=False) if d.ordinal == 0)
"""


def test_memory_is_free_after_a_restart(kernel: Callable[..., Kernel], figure: Figure) -> None:
    """What the old process held on the GPU, its context too, is gone within 5 s of the reply."""
    fresh = kernel()
    fresh.run(USED)
    before = fresh.value("used()")
    fresh.run(TAKE)
    where = fresh.value("where")
    if before[where] is None:
        pytest.skip("NVML does not tell the memory in use")
    held = fresh.value("used()")[where]
    fresh.run("%gpu off --restart -q")  # not 0: with one GPU that would change nothing
    replied = time.monotonic()
    fresh.run(USED)
    while True:
        left = fresh.value("used()")[where]
        seconds = time.monotonic() - replied
        if left <= before[where] + 64 * MIB or seconds > 5:
            break
        time.sleep(0.05)
    figure("memory in use: before, held, after a restart", (before[where], held, left))
    figure("seconds from the restart's reply until it was free", seconds)
    assert held > before[where]
    assert left <= before[where] + 64 * MIB
