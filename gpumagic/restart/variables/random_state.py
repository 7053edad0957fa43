"""The states of the global random generators: Python's, NumPy's, torch's."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gpumagic.cuda import failure, torch_cuda

#: Functions of ``torch.cuda`` that torch calls when it initialises CUDA, and their arguments.
_QUEUED = {
    "manual_seed": ("seed",),
    "manual_seed_all": ("seed",),
    "set_rng_state": ("new_state", "device"),
}
#: Until the user does, torch seeds a CUDA generator with a random number of 53 bits.
_SEEDED = 1 << 32


def capture() -> dict[str, Any]:
    """Return the states of the generators that this process has loaded, as plain data."""
    found: dict[str, Any] = {"python": random.getstate()}
    numpy: Any = sys.modules.get("numpy.random")
    if hasattr(numpy, "get_state"):
        found["numpy"] = numpy.get_state(legacy=False)
    torch: Any = torch_cuda.loaded()
    if torch is not None:
        found["torch"] = _bytes(torch.get_rng_state())
        found["queued_calls"] = [*_queued_calls(torch)]
        found["cuda"] = {}
        generators = torch.cuda.default_generators
        if failure.dead_context() is not None:
            found["cuda"] = dict.fromkeys(torch_cuda.contexts())
            generators = ()
        for ordinal, generator in enumerate(generators):
            try:
                found["cuda"][ordinal] = _bytes(generator.get_state())
            except RuntimeError:  # a graph is being captured
                found["cuda"][ordinal] = None
    return found


def restore(states: dict[str, Any], device_now: Callable[[int | None], str]) -> list[str]:
    """Continue where the old process's generators stopped.

    Return the GPUs of the old process whose generators cannot.
    """
    random.setstate(states["python"])
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])
    lost = []
    if "torch" in states:
        torch = torch_cuda.require()
        torch.set_rng_state(_tensor(torch, states["torch"]))
        for name, arguments in states["queued_calls"]:
            if name == "set_rng_state":
                state, device = arguments
                arguments = _tensor(torch, state), device
            getattr(torch.cuda, name)(*arguments)
        for ordinal, state in states["cuda"].items():
            if state is not None and not _was_used(state):
                continue
            now = device_now(ordinal)
            if now == "cpu" or state is None:
                lost.append(f"cuda:{ordinal}")
            else:
                torch.cuda.set_rng_state(_tensor(torch, state), now)
    return lost


def _queued_calls(torch: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Return the calls on CUDA's generators that wait for CUDA's initialisation, in order."""
    if torch.cuda.is_initialized():
        return
    seeds = getattr(torch.cuda, "_lazy_seed_tracker", None)
    queued = [*torch.cuda._queued_calls, *([] if seeds is None else seeds.get_calls())]
    for call in queued:
        function: Any = call[0] if call else None
        if getattr(function, "__module__", None) != "torch.cuda.random":
            continue
        name = function.__qualname__.partition(".")[0]
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        given = {variable: cell.cell_contents for variable, cell in cells}
        if all(each in given for each in _QUEUED.get(name, ("",))):
            arguments = tuple(given[each] for each in _QUEUED[name])
            if name == "set_rng_state":
                arguments = _bytes(arguments[0]), str(arguments[1])
            yield name, arguments


def _was_used(state: bytes) -> bool:
    """Return whether a CUDA generator was seeded with a number, or drawn from.

    Its state is the seed and the offset, 8 bytes each.
    """
    seed, drawn = (int.from_bytes(part, "little") for part in (state[:8], state[8:16]))
    return seed < _SEEDED or drawn > 0


def _bytes(state: Any) -> bytes:
    return bytes(state.tolist())


def _tensor(torch: Any, state: bytes) -> Any:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
