"""``%gpu off --soft``: a gate in the process, where it is too late to hide the GPUs from it.

Device-agnostic code uses the CPU, new CUDA tensors are refused, and nothing is lost. A best effort,
and documented as one: existing CUDA tensors can be used, other threads are gated only by the
replaced functions, and a name that was copied earlier (``from torch.cuda import is_available``)
still refers to the original. `lift` restores every object that `close` replaces, identical by
``is``, but what the user has replaced since.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import ModuleType
from typing import Any

from gpumagic.cuda import driver
from gpumagic.cuda.pytorch import torch_cuda, waiting
from gpumagic.errors import GpuMagicError
from gpumagic.results.selection import Selection
from gpumagic.selection import environment
from gpumagic.system.patching import patch

NOTE = (
    "a gate is closed ('%gpu off --soft'): new code goes to the CPU, what is on a GPU goes on; "
    "lift it with: %gpu on"
)
_NOTES = (
    "What is on the GPU stays and can be used; see it with: %gpumem vars",
    "The gate does not stop other libraries, or functions that were imported by name before "
    "(from torch.cuda import is_available); a restart does",
    "lift it with: %gpu on",
)


class GateError(GpuMagicError, RuntimeError):
    """New work was refused for a GPU, since the gate is closed."""


def is_available() -> bool:
    """Return False: new work is refused on every GPU (``%gpu off --soft``)."""
    return False


def device_count() -> int:
    """Return 0: new work is refused on every GPU (``%gpu off --soft``)."""
    return 0


def synchronize(device: object = None) -> None:
    """Wait for what is on the GPUs, where it goes on (``%gpu off --soft``): for all of it."""
    waiting.synchronize_all()


def _refuse() -> None:
    raise _error("CUDA")


def _error(what: str) -> GateError:
    return GateError(
        f"{what} is refused: this process is gated by '%gpu off --soft'; to lift that: %gpu on"
    )


def _index_of(original: Callable[..., int | None]) -> Callable[..., int]:
    """Return torch's look-up of a device's index, which finds no current one behind the gate."""

    def index(*arguments: object, **options: object) -> int:
        found = original(*arguments, **options)
        if found is None or found < 0:
            raise _error("CUDA")
        return found

    return index


def _refusing_mode(torch: Any) -> Any:
    """Return a function mode of torch that refuses new CUDA tensors.

    Once CUDA is initialised torch's C++ code calls no Python function for it, so the mode checks
    the arguments of functions, and the tensors that they return.
    """
    tensor, device_type, leaves = torch.Tensor, torch.device, torch.utils._pytree.tree_leaves

    def names_cuda(value: object) -> bool:
        if isinstance(value, device_type):
            return bool(value.type == "cuda")
        return isinstance(value, str) and value.startswith("cuda")

    def on_cuda(value: object) -> bool:
        return isinstance(value, tensor) and value.is_cuda

    class RefuseNewCuda(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: object, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            # What is on the GPU already can be used, and moved there again. An attribute of a
            # tensor is no new one: the gradient of a parameter that was moved to the CPU.
            name = getattr(function, "__name__", "")
            if name == "__get__":
                return function(*args, **kwargs)
            if not any(map(on_cuda, args[:1])):
                named = names_cuda(kwargs.get("device")) or any(map(names_cuda, args[1:]))
                to_other = name == "to" and any(map(on_cuda, args[1:]))
                if named or to_other or name in ("cuda", "pin_memory"):
                    raise _error("A new CUDA tensor")
            result = function(*args, **kwargs)
            if on_cuda(result) and not any(map(on_cuda, leaves((args, kwargs)))):
                raise _error("A new CUDA tensor")
            return result

    return RefuseNewCuda()


def _remove_mode(torch: ModuleType, mode: object) -> None:
    """Remove the mode from torch's stack, also if the user has entered other modes since."""
    overrides = torch.overrides
    above = []
    while overrides._len_torch_function_stack():
        top = overrides._pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        overrides._push_mode(other)


# --- the process's gate --------------------------------------------------------------------------

#: The closed gate: what restores every object that it has replaced.
_gate: ExitStack | None = None


def is_closed() -> bool:
    """Return whether the gate is closed."""
    return _gate is not None


def close(requested: str = "off") -> Selection:
    """Close the gate, and return what it leaves to this process; the environment is not changed.

    Imports torch.

    Raises:
        DeviceError: torch cannot be imported.
    """
    global _gate
    lift()
    torch: Any = torch_cuda.require()
    memory = torch.cuda.memory
    with ExitStack() as undo:
        # From torch 2.7 on those of the accelerator call torch.cuda; before, they call C++.
        for owner, name, new in (
            (torch.cuda, "is_available", is_available),
            (torch.cuda, "device_count", device_count),
            (torch.accelerator, "is_available", is_available),
            (torch.accelerator, "device_count", device_count),
            (torch.cuda, "_lazy_init", _refuse),
            (torch.cuda, "synchronize", synchronize),
            # Of memory_allocated() and its like.
            (memory, "_get_device_index", _index_of(memory._get_device_index)),
        ):
            undo.callback(patch(owner, name, new))
        mode = _refusing_mode(torch)
        mode.__enter__()
        undo.callback(_remove_mode, torch, mode)
        _gate = undo.pop_all()
    return Selection(
        requested=requested,
        environment=environment.now(),
        status="gated",
        cuda_initialized=driver.state().initialized,
        notes=_NOTES,
    )


def lift() -> bool:
    """Lift the gate; return whether it was closed."""
    global _gate
    gate, _gate = _gate, None
    if gate is not None:
        gate.close()
    return gate is not None


def under_gate(chosen: Selection) -> Selection:
    """Return a selection with what the closed gate leaves of it, and a note."""
    if not is_closed():
        return chosen
    chosen = replace(chosen, notes=(NOTE, *chosen.notes))
    if chosen.status == "too-late" or not chosen.devices:
        return chosen
    return replace(chosen, status="gated", devices=())
