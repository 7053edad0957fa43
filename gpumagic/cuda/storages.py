"""Storages of CUDA tensors: their bytes, their memory released and allocated again, a guard.

The guard is torch's own: any access to the data of a guarded storage, by any thread and any
library, raises a `RuntimeError` in C++ with a given message before a kernel is launched.
"""

from __future__ import annotations

from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.tensor_functions import tensor_base

_GUARD = "_set_storage_data_ptr_access_error_msg"
_CLEAR = "_clear_storage_data_ptr_access_error_msg"


def can_guard() -> bool:
    """Return whether this torch can guard storages, and take the guard away again."""
    functions = torch_cuda.c_functions()
    return hasattr(functions, _GUARD) and hasattr(functions, _CLEAR)


def guard(storage: Any, message: str) -> None:
    """Make any access to a storage's data raise ``message``."""
    getattr(torch_cuda.c_functions(), _GUARD)(storage._cdata, message)


def clear_guard(storage: Any) -> None:
    """Undo `guard`."""
    getattr(torch_cuda.c_functions(), _CLEAR)(storage._cdata)


def storage_of(thing: Any) -> Any:
    """Return the untyped storage of a tensor or a storage; None for one without its own."""
    torch = cast(Any, torch_cuda.loaded())
    if issubclass(type(thing), torch.UntypedStorage):
        return thing
    try:
        return tensor_base().untyped_storage(thing)
    except Exception:  # sparse, or a subclass that stands for other tensors
        return None


def as_bytes(storage: Any) -> Any:
    """Return a tensor of the storage's bytes, which shares its memory."""
    torch = cast(Any, torch_cuda.loaded())
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def references(storage: Any) -> int:
    """Return the references to a storage, that of its Python object among them."""
    return int(cast(Any, torch_cuda.loaded())._C._storage_Use_Count(storage._cdata))


def allocate(storage: Any, nbytes: int, stream: int) -> None:
    """Give an empty CUDA storage new memory, allocated for the stream of this handle.

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
    """Return the storage of a weak reference; None if it is gone."""
    torch = cast(Any, torch_cuda.loaded())
    if reference.expired():
        return None
    return torch.UntypedStorage._new_with_weak_ptr(reference.cdata)


def shared_with_processes() -> set[int]:
    """Return the addresses (``_cdata``) of the storages that were sent to other processes."""
    torch = cast(Any, torch_cuda.loaded())
    shared = torch.multiprocessing.reductions.shared_cache
    return {ref.cdata for ref in list(shared.values()) if not ref.expired()}


def clear_workspaces() -> None:
    """Free cuBLAS's workspaces in torch's allocator; made anew when they are needed."""
    clear = getattr(torch_cuda.c_functions(), "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def release_pinned_memory() -> None:
    """Release the pinned host memory that torch has cached."""
    clear = getattr(torch_cuda.c_functions(), "_host_emptyCache", None)
    if clear is not None:
        clear()


def active_modes() -> list[str]:
    """Return the names of this thread's modes of torch, without that of a default device."""
    torch = cast(Any, torch_cuda.loaded())
    import_from: Any = torch.utils._python_dispatch
    stacks = [
        *torch.overrides._get_current_function_mode_stack(),
        *import_from._get_current_dispatch_mode_stack(),
    ]
    names = [type(mode).__name__ for mode in stacks]
    return [name for name in names if name != "DeviceContext"]


def innermost_modes() -> tuple[Any, Any]:
    """Return this thread's innermost function mode and dispatch mode, each None without one."""
    torch = cast(Any, torch_cuda.loaded())
    functions = torch.overrides._get_current_function_mode_stack()
    dispatches = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return (functions[-1] if functions else None, dispatches[-1] if dispatches else None)
