"""A kernel restarted in place against jupyter_client's own restart and a choice, in turns."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

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
                (_in_place(kernels[0], turn), _by_the_front_end(kernels[1], turn))
                for turn in range(ROUNDS)
            ]
        finally:
            for kernel in kernels:
                kernel.close()
    ours, reference = (median(column) for column in zip(*turns, strict=True))
    note = f"restart_kernel and the same choice, until its reply; medians of {ROUNDS}, in turns"
    yield Row("%gpu … --restart --keep none, to its reply", ours, reference, note, 1.0)


def _in_place(kernel: Kernel, turn: int) -> float:
    """From the cell that asks to its reply."""
    kernel.run(_FREEZE)
    started = time.perf_counter()
    shown = kernel.run(f"%gpu {turn % 2} --restart --keep none").text
    taken = time.perf_counter() - started
    assert shown.startswith("restarted"), shown
    return taken


def _by_the_front_end(kernel: Kernel, turn: int) -> float:
    """From ``restart_kernel`` to the reply of the same choice, in the first cell.

    A front end, too, waits for the kernel before it sends a cell: the output of one that is sent
    before is lost, as long as the kernel's sockets are not connected anew.
    """
    started = time.perf_counter()
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=120)
    kernel.run(f"%load_ext gpumagic\n%gpu {turn % 2}")
    return time.perf_counter() - started
