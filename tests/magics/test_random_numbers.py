"""A seeded notebook draws the same numbers with gpumagic: no magic changes a generator's state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.magics import every_magic
from tests.support.kernels import Kernel

SETUP = """
import random
import numpy

def states():
    numbers = numpy.random.get_state()
    cuda = [each.tolist() for each in torch.cuda.get_rng_state_all()]
    return {
        "random": random.getstate(),
        "NumPy": (numbers[1].tolist(), numbers[2:]),
        "torch": torch.get_rng_state().tolist(),
        "CUDA": cuda,
    }
"""


def test_no_magic_changes_a_state(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    started = kernel(load=False, fresh=True)  # where nothing is imported yet
    started.run(every_magic.SETUP + SETUP)
    changed = []
    started.run("before = states()")
    for cell in ("%load_ext gpumagic", *every_magic.CELLS):
        reply = started.run(cell, raising=False)
        assert reply.status == "ok" or "too much" in cell, reply.shown
        if names := started.value("[n for n, state in states().items() if state != before[n]]"):
            changed.append((cell, names))
            started.run("before = states()")
    assert not changed
