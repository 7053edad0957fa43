"""The states of the global random generators: Python's, NumPy's, torch's."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from gpumagic import torch_cuda


def save() -> dict[str, Any]:
    """The states of the generators that this process has loaded; plain data."""
    found: dict[str, Any] = {"python": random.getstate()}
    numpy: Any = sys.modules.get("numpy.random")
    if hasattr(numpy, "get_state"):
        found["numpy"] = numpy.get_state(legacy=False)
    torch: Any = torch_cuda.loaded()
    if torch is not None:
        found["torch"] = bytes(torch.get_rng_state().tolist())
        found["cuda"] = {}
        for ordinal in torch_cuda.contexts():
            try:
                found["cuda"][ordinal] = bytes(torch.cuda.get_rng_state(ordinal).tolist())
            except RuntimeError:  # the device is lost, or a graph is being captured
                continue
    return found


def restore(states: dict[str, Any], device_now: Callable[[int | None], str]) -> None:
    """Go on where the old process's generators stopped; CUDA's as soon as it is used."""
    random.setstate(states["python"])
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])
    if "torch" in states:
        torch = torch_cuda.require()
        torch.set_rng_state(_tensor(torch, states["torch"]))
        for ordinal, state in states["cuda"].items():
            now = device_now(ordinal)
            if now != "cpu":
                torch.cuda.set_rng_state(_tensor(torch, state), now)


def _tensor(torch: Any, state: bytes) -> Any:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
