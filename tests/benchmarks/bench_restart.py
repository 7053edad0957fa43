"""A kernel restarted in place against jupyter_client's own restart of it, in turns."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from tests.benchmarks.row import Row
from tests.support.kernels import Kernel, python_environment

KEEPING = 5
ROUNDS = 10  # even: the choice changes from one turn to the next
#: Initialises the driver, so that another choice needs a restart; torch is not needed for that.
_FREEZE = "%load_ext gpumagic\nimport ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"


def _in_place(kernel: Kernel, after: str, turn: int) -> float:
    """From the cell that asks to its reply, or to the reply of the cell ``after`` it."""
    kernel.run(_FREEZE)
    started = time.perf_counter()
    shown = kernel.run(f"%gpu {turn % 2} --restart").text
    if after:
        kernel.run(after)
    taken = time.perf_counter() - started
    assert shown.startswith("restarted"), shown
    return taken


#: What a child loads first: a model, for which it imports torch, and a list.
_KEPT = """
import torch
class Net(torch.nn.Linear): pass
model, steps = Net(8, 8), [1, 2]
"""


def _keeping(kernel: Kernel, name: str, choice: int) -> float:
    """From the cell that asks to its reply, with a variable that is kept."""
    kernel.run(_FREEZE + _KEPT)
    started = time.perf_counter()
    shown = kernel.run(f"%gpu {choice} --restart --keep {name}").text
    taken = time.perf_counter() - started
    assert f"Kept: {name}" in shown, shown
    return taken


def _by_the_front_end(kernel: Kernel, after: str, turn: int) -> float:
    """From ``restart_kernel`` to the first reply.

    A front end, too, waits for the kernel before it sends a cell: the output of one that is sent
    before is lost, as long as the kernel's sockets are not connected anew.
    """
    started = time.perf_counter()
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=120)
    kernel.run(after or "1")
    return time.perf_counter() - started


def rows() -> Iterator[Row]:
    ways: dict[str, Callable[[Kernel, str, int], float]] = {
        "ours": _in_place,
        "reference": _by_the_front_end,
    }
    # Bytecode is written, as in any installation: compiling is not what is measured.
    environment = python_environment(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        kernels = {way: Kernel(environment, Path(folder), fresh=True) for way in ways}
        try:
            for name, after in (("its reply", ""), ("import torch behind it", "import torch")):
                times: dict[str, list[float]] = {way: [] for way in ways}
                for turn in range(ROUNDS):
                    for way, run in ways.items():
                        times[way].append(run(kernels[way], after, turn))
                yield Row.at_most(
                    f"%gpu … --restart, to {name}",
                    median(times["ours"]),
                    median(times["reference"]),
                    1,
                    note=f"restart_kernel, until it is ready, and the first reply; medians of "
                    f"{ROUNDS}, in turns",
                )
            names = ("model", "steps")
            keeping: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(KEEPING):
                for choice, name in enumerate(names):
                    keeping[name].append(_keeping(kernels["ours"], name, choice))
            yield Row.shown(
                "%gpu … --restart --keep of a model",
                median(keeping["model"]),
                median(keeping["steps"]),
                note=f"--keep of a list, for which the child does not import torch; medians of "
                f"{KEEPING}, in turns",
            )
        finally:
            for kernel in kernels.values():
                kernel.close()
