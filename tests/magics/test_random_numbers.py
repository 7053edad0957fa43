"""A seeded notebook draws the same numbers with gpumagic: no magic changes a generator's state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.kernels import Kernel

SETUP = """
import asyncio, random
import numpy, torch

def states():
    numbers = numpy.random.get_state()
    cuda = [each.tolist() for each in torch.cuda.get_rng_state_all()]
    return {
        "random": random.getstate(),
        "NumPy": (numbers[1].tolist(), numbers[2:]),
        "torch": torch.get_rng_state().tolist(),
        "CUDA": cuda,
    }

def f(x):
    return x + 1

x = torch.ones(2**20, device="cuda")
"""
#: In the order in which they run: each in one process, the first of which draws for the first time.
CELLS = (
    "gpumagic.devices()",
    "%gpu",
    "%gpu doctor",
    "%gpu reset",
    "%gpu watch",
    "%gpu watch off\n%gpu plot gpus.png",
    "%%gpu on\npass",
    "%gpu?",
    "%cudatime pass",
    "%cudatime -n 2 -r 2 f(x)",
    "%cudatime --lines f(x)",
    "%%cudatime\nawait asyncio.sleep(0)",
    "%cudatime --kernels f(x)",
    "%cudatime --trace trace.json f(x)",
    "%cudatime --nvtx step f(x)",
    "%cudatime --flops f(x)",
    "%cudatime --energy f(x)",
    "%cudatime --cold f(x)",
    "%cudatime --save times.json f(x)",
    "%cudatime --against times.json f(x)",
    "%cudatime on",
    "y = f(x)",
    "%cudatime log\n%cudatime off",
    "%gpumem",
    "%gpumem y = f(x)",
    "%%gpumem --lines\ny = f(x)",
    "%%gpumem --fit n=1:8\ntorch.ones(n, device='cuda')",
    "%gpumem on",
    "y = f(x)",
    "%gpumem log\n%gpumem plot cells.png\n%gpumem off",
    "%gpumem vars",
    "torch.ones(2**50, device='cuda')  # too much: the report below",
    "%gpumem free y",
    "%gpumem limit 1GiB\n%gpumem limit off",
    "%gpumem record on\n%gpumem cells\n%gpumem snapshot memory.pickle\n%gpumem record off",
    "%unload_ext gpumagic",
)


def test_no_magic_changes_a_state(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    started = kernel(load=False, fresh=True)  # where nothing is imported yet
    started.run(SETUP)
    changed = []
    started.run("before = states()")
    for cell in ("%load_ext gpumagic", "import gpumagic", *CELLS):
        reply = started.run(cell, raising=False)
        assert reply.status == "ok" or "too much" in cell, reply.shown
        if names := started.value("[n for n, state in states().items() if state != before[n]]"):
            changed.append((cell, names))
            started.run("before = states()")
    assert not changed
