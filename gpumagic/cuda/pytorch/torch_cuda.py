"""Torch itself, which is imported only on request, and the state of its CUDA.

No function initialises CUDA or creates a context unless its docstring says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, cast

from gpumagic.errors import DeviceError
from gpumagic.system import text


def loaded() -> ModuleType | None:
    """Return torch if this process has imported it, else None. Never imports it."""
    module = sys.modules.get("torch")
    # While torch is being imported, or after its import failed, it is in sys.modules but unusable.
    return module if module is not None and hasattr(module, "cuda") else None


def module() -> ModuleType:
    """Return torch, which this process must have imported."""
    return sys.modules["torch"]


def require() -> ModuleType:
    """Return torch; import it if need be.

    Raises:
        DeviceError: torch is not installed or cannot be imported.
    """
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways (OSError, RuntimeError…)
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        remedy = "install it with: pip install torch" if missing else "'import torch' shows why"
        raise DeviceError(f"torch cannot be imported ({text.named(error)}); {remedy}") from error
    return torch


def built_with_cuda() -> bool:
    """Return whether the loaded torch has CUDA (or ROCm) support; False where none is loaded."""
    torch = loaded()
    return torch is not None and hasattr(torch._C, "_cuda_getDeviceCount")


def c_functions() -> Any:
    """Return ``torch._C``, with the functions behind ``torch.cuda``; None without CUDA support."""
    return module()._C if built_with_cuda() else None


def initialized() -> bool:
    """Return whether torch itself has initialised CUDA.

    The driver may be initialised where this is False: ``torch.cuda.is_available()`` initialises
    only the driver. `gpumagic.cuda.driver` queries that.
    """
    torch = loaded()
    return torch is not None and bool(torch.cuda.is_initialized())


def in_bad_fork() -> bool:
    """Return whether this is a forked child of a process in which torch had initialised CUDA."""
    is_in_bad_fork = getattr(c_functions(), "_cuda_isInBadFork", None)
    return is_in_bad_fork is not None and bool(is_in_bad_fork())


def replaced_is_available() -> str | None:
    """Return the file that has replaced ``torch.cuda.is_available``; None where it is torch's."""
    torch: Any = loaded()
    if torch is None:
        return None
    found = vars(torch.cuda).get("is_available")
    file = found.__code__.co_filename if type(found) is FunctionType else type(found).__name__
    return None if file == torch.cuda.__file__ else file


def cpu_threads() -> int | None:
    """Return the number of CPU threads that torch uses; None where torch is not loaded."""
    torch = loaded()
    return None if torch is None else int(torch.get_num_threads())


# --- devices ------------------------------------------------------------------------------------


def contexts() -> tuple[int, ...]:
    """Return the CUDA ordinals on which this process has a primary context. Creates none."""
    torch: Any = loaded()
    if torch is None or not torch.cuda.is_initialized():  # `initialized`, without its calls
        return ()
    # Not `torch.cuda.device_count`: in torch 2.6 that counts by the variable's current value.
    count = torch._C._cuda_getDeviceCount()
    return tuple(filter(torch._C._cuda_hasPrimaryContext, range(count)))


def current_device() -> int | None:
    """Return the calling thread's current CUDA ordinal; None before torch has initialised CUDA."""
    torch: Any = loaded()
    if torch is None or not torch.cuda.is_initialized():
        return None
    return cast(int, torch._C._cuda_getDevice())


def current_stream(ordinal: int) -> Any:
    """Return the calling thread's current stream on a device."""
    return module().cuda.current_stream(ordinal)


def name(ordinal: int) -> str:
    """Return the name of a device that is in use."""
    return str(module().cuda.get_device_properties(ordinal).name)


def uuid(ordinal: int) -> str:
    """Return a device's UUID as NVML writes it, by torch's properties of the device."""
    properties = module().cuda.get_device_properties(ordinal)
    return f"GPU-{getattr(properties, 'uuid', '')}"


def memory_info(ordinal: int) -> tuple[int, int]:
    """Return free and total bytes of a device, as the CUDA runtime reports them.

    Creates a context where there is none: only for a device that has one (`contexts`).
    """
    free, total = module().cuda.mem_get_info(ordinal)
    return int(free), int(total)


# --- calls at initialisation ----------------------------------------------------------------------


def when_initialized(call: Callable[[], None]) -> None:
    """Call a function when torch initialises CUDA, before anything is allocated."""
    module().cuda._lazy_call(call)


def cancel(call: Callable[[], None]) -> None:
    """Undo `when_initialized` for a function."""
    waiting = queued_calls()
    waiting[:] = [queued for queued in waiting if queued[0] is not call]


def queued_calls() -> list[Any]:
    """Return the list of what torch calls when it initialises CUDA; an empty one without torch."""
    return cast("list[Any]", getattr(sys.modules.get("torch.cuda"), "_queued_calls", []))
