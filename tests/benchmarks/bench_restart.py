"""A kernel restarted in place against jupyter_client's own restart of it, in turns."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pynvml

from gpumagic.render.units import seconds
from tests.benchmarks.process import installed
from tests.benchmarks.row import Row
from tests.support.kernels import Kernel

ROUNDS = 6  # even: the choice changes from one turn to the next
#: Initialises the driver, so that another choice needs a restart; torch is not needed for that.
_FREEZE = "%load_ext gpumagic\nimport ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        kernels = [Kernel(installed(os.environ), Path(folder), fresh=True) for _ in range(2)]
        try:
            turns = [
                (_in_place(kernels[0], turn), _by_the_front_end(kernels[1]))
                for turn in range(ROUNDS)
            ]
        finally:
            for kernel in kernels:
                kernel.close()
    ours, reference = (median(column) for column in zip(*turns, strict=True))
    looks = 2 * _look()
    note = f"restart_kernel, until the first reply; medians of {ROUNDS}, in turns; ours without "
    note += f"{seconds(looks)} for two looks at the GPUs, by NVML and by hand"
    yield Row("%gpu … --restart, to its reply", ours - looks, reference, note, 1.0)


def _look() -> float:
    """Seconds that NVML takes to list the GPUs and their memory: before the restart, and after."""
    begun = time.perf_counter()
    pynvml.nvmlInit()
    for handle in map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())):
        pynvml.nvmlDeviceGetUUID(handle)
        pynvml.nvmlDeviceGetMemoryInfo(handle)
        pynvml.nvmlDeviceGetMigMode(handle)
    pynvml.nvmlShutdown()
    return time.perf_counter() - begun


def _in_place(kernel: Kernel, turn: int) -> float:
    """From the cell that asks to its reply."""
    kernel.run(_FREEZE)
    started = time.perf_counter()
    shown = kernel.run(f"%gpu {turn % 2} --restart").text
    taken = time.perf_counter() - started
    assert shown.startswith("restarted"), shown
    return taken


def _by_the_front_end(kernel: Kernel) -> float:
    """From ``restart_kernel`` to the first reply.

    A front end, too, waits for the kernel before it sends a cell: the output of one that is sent
    before is lost, as long as the kernel's sockets are not connected anew.
    """
    started = time.perf_counter()
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=120)
    kernel.run("1")
    return time.perf_counter() - started
