"""The random states and seeds of the GPUs: read and set now, or for when CUDA starts.

A state belongs to a GPU, by UUID: which number it has, and whether it is hidden, may change.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from gpumagic.cuda import driver
from gpumagic.cuda.pytorch import torch_cuda

#: The states by UUID that were set before CUDA starts: a GPU may be hidden until then.
_waiting = dict[str, bytes]()


def states() -> dict[str, bytes]:
    """Return the states of the GPUs by UUID, or those that wait for CUDA to start."""
    generators = _generators()
    if not generators:
        return _waiting
    found = dict[str, bytes]()
    for uuid, each in generators.items():
        with suppress(RuntimeError):  # in host memory: a context that has failed may have it still
            found[uuid] = bytes(each.get_state().tolist())
    return found


def set_states(states: dict[str, bytes]) -> None:
    """When CUDA starts: set the states; a GPU that had none has the seed of all others."""

    def set_all() -> None:
        torch: Any = torch_cuda.module()
        for uuid, each in _generators().items():
            if uuid in _waiting:
                state = [*_waiting[uuid]]
                each.set_state(torch.tensor(state, dtype=torch.uint8, device="cpu"))
            else:
                each.manual_seed(torch.initial_seed())

    _waiting.update(states)
    torch_cuda.when_initialized(set_all)


def _generators() -> dict[str, Any]:
    generators = torch_cuda.module().cuda.default_generators
    return dict(zip(driver.state().uuids or (), generators, strict=False))


def waiting_seeds() -> list[tuple[str, Any]]:
    """Return the seeds that torch sets when CUDA starts, after those states, with the functions."""
    torch: Any = torch_cuda.module()
    if torch.cuda.is_initialized():
        return []
    calls = [call for call, _ in filter(None, torch.cuda._lazy_seed_tracker.get_calls())]
    return [(each.__qualname__.split(".")[0], each.__closure__[0].cell_contents) for each in calls]


def set_seeds(seeds: list[tuple[str, Any]]) -> None:
    """Set seeds, each by the function of ``torch.cuda`` that has set it."""
    for name, seed in seeds:
        getattr(torch_cuda.module().cuda, name)(seed)
