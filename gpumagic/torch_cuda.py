"""The only import of torch, and a lazy one: devices, contexts, events, allocator counters.

Nothing here initialises CUDA or makes a context unless its docstring says so.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    import torch


def loaded() -> ModuleType | None:
    """torch if this process has imported it, else None. Never imports it."""
    module = sys.modules.get("torch")
    # While torch is being imported, or after its import failed, it is there but unusable.
    return module if module is not None and hasattr(module, "cuda") else None


def require() -> ModuleType:
    """torch, imported if need be.

    Raises:
        DeviceError: torch is not installed or cannot be imported.
    """
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways (OSError, RuntimeError…)
        reason = str(error).strip().splitlines()
        raise DeviceError(
            f"torch cannot be imported ({type(error).__name__}: {reason[0] if reason else '-'}); "
            "install it with: pip install torch"
        ) from error
    return torch


def built_with_cuda() -> bool:
    """Whether the loaded torch has CUDA (or ROCm) support; False where torch is not loaded."""
    torch = loaded()
    return torch is not None and hasattr(torch._C, "_cuda_getDeviceCount")


def initialized() -> bool:
    """Whether torch itself has initialised CUDA.

    False does not mean that the driver is untouched: ``torch.cuda.is_available()`` initialises the
    driver and leaves this False. `gpumagic.driver` asks the driver.
    """
    torch = loaded()
    return torch is not None and built_with_cuda() and bool(torch.cuda.is_initialized())


def contexts() -> tuple[int, ...]:
    """The CUDA ordinals on which this process has a primary context. Makes none."""
    if not initialized():
        return ()
    torch = cast(Any, loaded())
    has_context = torch._C._cuda_hasPrimaryContext
    return tuple(i for i in range(torch.cuda.device_count()) if has_context(i))


def memory_stats(ordinal: int) -> dict[str, Any]:
    """The caching allocator's counters of a device, nested, in one call.

    Costs far less than ``torch.cuda.memory_stats``, which flattens and sorts them. Only for a
    device that has a context (`contexts`).
    """
    torch = cast(Any, loaded())
    return cast("dict[str, Any]", torch._C._cuda_memoryStats(ordinal))


def c_functions() -> Any:
    """``torch._C``, which holds the functions behind ``torch.cuda``; None without CUDA support."""
    torch = cast(Any, loaded())
    return torch._C if built_with_cuda() else None


def allocator_backend() -> str | None:
    """``native``, ``cudaMallocAsync`` or ``pluggable``; None where CUDA is not initialised."""
    return str(cast(Any, loaded())._C._cuda_getAllocatorBackend()) if initialized() else None


def memory_info(ordinal: int) -> tuple[int, int]:
    """Free and total bytes of a device, as the CUDA runtime tells them.

    Makes a context where there is none: only for a device that has one (`contexts`).
    """
    free, total = cast(Any, loaded()).cuda.mem_get_info(ordinal)
    return int(free), int(total)


def device() -> torch._C.device:
    """The device for device-agnostic code: CUDA (or ROCm) if there is one, else MPS, XPU or CPU.

    Imports torch. With ``%load_ext gpumagic`` the question does not initialise the driver, so that
    a later ``%gpu off`` still works.

    Raises:
        DeviceError: torch cannot be imported.
    """
    torch = require()
    if torch.cuda.is_available():
        return cast("torch._C.device", torch.device("cuda"))
    for kind in ("mps", "xpu"):
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_available():
            return cast("torch._C.device", torch.device(kind))
    return cast("torch._C.device", torch.device("cpu"))
