"""The states of the random generators of Python, NumPy and torch, across a restart."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gpumagic.cuda import torch_cuda


def states() -> dict[str, Any]:
    """Return the states, as plain data and NumPy arrays; of GPUs only where they are in use.

    They are in host memory, also those of GPUs: a CUDA context that has failed has them still.
    """
    found: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), torch_cuda.loaded()
    if numpy is not None:
        found["numpy"] = numpy.random.get_state()
    if torch is not None:
        found["torch"] = torch.get_rng_state().numpy()
        found["seed"] = torch.initial_seed()
        if torch_cuda.initialized():
            found["cuda"] = [*map(_state, torch.cuda.default_generators)]
    return found


def _state(generator: Any) -> Any:
    try:
        return generator.get_state().numpy()
    except RuntimeError:  # CUDA has failed
        return None


def restore(found: Mapping[str, Any], now: Callable[[str], str]) -> list[str]:
    """Restore the states; return the GPUs whose state is lost, as ``cuda:0`` of the old process.

    ``now`` returns where a device of the old process is in this one.
    """
    random.setstate(found["python"])
    if "numpy" in found:
        import numpy

        numpy.random.set_state(found["numpy"])
    if "torch" not in found:
        return []
    torch: Any = torch_cuda.require()
    torch.set_rng_state(torch.from_numpy(found["torch"]))
    if "cuda" not in found:  # `torch.manual_seed` seeds them when they are used
        torch.cuda.manual_seed_all(found["seed"])
    lost, none = [], now("cuda") == "cpu"  # without GPUs their states are missed by nobody
    for number, state in enumerate(found.get("cuda", ())):
        place = now(f"cuda:{number}")
        if not none and (state is None or place == "cpu"):
            lost.append(f"cuda:{number}")
        elif not none:
            torch.cuda.set_rng_state(torch.from_numpy(state), place)
    return lost
