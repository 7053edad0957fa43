"""Storages of CUDA tensors: read their bytes, allocate their memory again, guard their data.

The guard is torch's: any access to the data of a guarded storage, by any thread and any library,
raises a `RuntimeError` in C++ with a given message before a kernel is launched.
"""

from __future__ import annotations

from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.tensor_functions import tensor_base

_GUARD = "_set_storage_data_ptr_access_error_msg"
_CLEAR = "_clear_storage_data_ptr_access_error_msg"


def can_guard() -> bool:
    """Return whether this torch has functions to guard storages and to remove the guard."""
    functions = torch_cuda.c_functions()
    return hasattr(functions, _GUARD) and hasattr(functions, _CLEAR)


def guard(storage: Any, message: str) -> None:
    """Make any access to a storage's data raise ``message``."""
    getattr(torch_cuda.c_functions(), _GUARD)(storage._cdata, message)


def clear_guard(storage: Any) -> None:
    """Remove the guard of a storage."""
    getattr(torch_cuda.c_functions(), _CLEAR)(storage._cdata)


def storage_of(thing: Any) -> Any:
    """Return the untyped storage of a tensor or a storage; None for one without a storage."""
    torch = cast(Any, torch_cuda.loaded())
    if issubclass(type(thing), torch.UntypedStorage):
        return thing
    try:
        return tensor_base().untyped_storage(thing)
    except Exception:  # sparse, or a subclass that wraps other tensors
        return None


def as_bytes(storage: Any) -> Any:
    """Return a 1-D ``uint8`` tensor of the storage's bytes, which shares its memory."""
    torch = cast(Any, torch_cuda.loaded())
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def references(storage: Any) -> int:
    """Return the number of references to a storage, that of its Python object included."""
    return int(cast(Any, torch_cuda.loaded())._C._storage_Use_Count(storage._cdata))


def allocate(storage: Any, nbytes: int, stream: int) -> None:
    """Allocate ``nbytes`` bytes for an empty CUDA storage, on the stream with this handle.

    Raises:
        torch.OutOfMemoryError: the device has too little memory.
    """
    cuda = cast(Any, torch_cuda.loaded()).cuda
    if not stream:
        chosen = cuda.default_stream(storage.device)
    else:
        chosen = cuda.ExternalStream(stream, device=storage.device)
    with cuda.stream(chosen):
        storage.resize_(nbytes)


def weak_reference(storage: Any) -> Any:
    """Return a weak reference, for `referenced`."""
    return cast(Any, torch_cuda.loaded()).multiprocessing.reductions.StorageWeakRef(storage)


def referenced(reference: Any) -> Any:
    """Return the storage of a weak reference; None if it was deleted."""
    torch = cast(Any, torch_cuda.loaded())
    if reference.expired():
        return None
    return torch.UntypedStorage._new_with_weak_ptr(reference.cdata)


def shared_with_processes() -> set[int]:
    """Return the addresses (``_cdata``) of the storages that are shared with other processes."""
    torch = cast(Any, torch_cuda.loaded())
    shared = torch.multiprocessing.reductions.shared_cache
    return {ref.cdata for ref in list(shared.values()) if not ref.expired()}


def clear_workspaces() -> None:
    """Free cuBLAS's workspaces in torch's allocator; cuBLAS allocates them again when needed."""
    clear = getattr(torch_cuda.c_functions(), "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def release_pinned_memory() -> None:
    """Release the pinned host memory that torch has cached."""
    clear = getattr(torch_cuda.c_functions(), "_host_emptyCache", None)
    if clear is not None:
        clear()


def active_modes() -> list[str]:
    """Return the names of this thread's modes of torch, except that of a default device."""
    names = [type(mode).__name__ for stack in _mode_stacks() for mode in stack]
    return [name for name in names if name != "DeviceContext"]


def innermost_modes() -> tuple[Any, Any]:
    """Return this thread's innermost function mode and dispatch mode, each None without one."""
    functions, dispatches = _mode_stacks()
    return (functions[-1] if functions else None, dispatches[-1] if dispatches else None)


def _mode_stacks() -> tuple[list[Any], list[Any]]:
    """Return this thread's function modes and dispatch modes, the innermost last."""
    torch = cast(Any, torch_cuda.loaded())
    dispatch = torch.utils._python_dispatch
    return (
        torch.overrides._get_current_function_mode_stack(),
        dispatch._get_current_dispatch_mode_stack(),
    )
