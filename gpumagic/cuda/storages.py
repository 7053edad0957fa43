"""Tensors and their storages: their bytes, their memory taken and given back, a guard.

A storage whose memory was taken keeps its size and its device, so that shapes and views stay what
they are. Its guard is torch's own: any access to its data, by any thread and any library, raises a
`RuntimeError` in C++ with `PARKED` before a kernel is launched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, cast

from gpumagic.cuda import torch_cuda

#: What an access to a storage without memory raises.
PARKED = (
    "this tensor's GPU memory is parked in host memory (%gpumem park); "
    "%gpumem unpark brings it back"
)
_GUARD = "_set_storage_data_ptr_access_error_msg"
#: The newest of the functions needed: torch 2.12 brought it, and no older one can undo a guard.
_CLEAR = "_clear_storage_data_ptr_access_error_msg"
_EMPTY = "_construct_storage_from_data_pointer"
_SWAP = "_swap_data_ptr_"


def can_guard() -> bool:
    """Return whether this torch can take a storage's memory, guard it, and give it back."""
    storage = cast(Any, torch_cuda.loaded()).UntypedStorage
    functions = torch_cuda.c_functions()
    return hasattr(storage, _SWAP) and all(
        hasattr(functions, name) for name in (_GUARD, _CLEAR, _EMPTY)
    )


def placeholders(owners: Iterable[Any]) -> list[Any]:
    """Return for each storage one of its size and device without memory, guarded."""
    functions = torch_cuda.c_functions()
    made = [getattr(functions, _EMPTY)(0, each.device, each.nbytes()) for each in owners]
    guard(made)
    return made


def exchange(owners: Sequence[Any], others: Sequence[Any]) -> None:
    """Exchange the memory of storages, and whether it is guarded, pair by pair.

    In C alone, so that an interrupt comes before or after all of it.
    """
    swap = getattr(cast(Any, torch_cuda.loaded()).UntypedStorage, _SWAP)
    deque(map(swap, owners, others), maxlen=0)


def guard(owners: Iterable[Any]) -> None:
    """Make any access to the data of storages raise `PARKED`."""
    function = getattr(torch_cuda.c_functions(), _GUARD)
    for each in owners:
        function(each._cdata, PARKED)


def clear_guard(owners: Iterable[Any]) -> None:
    """Undo `guard`."""
    function = getattr(torch_cuda.c_functions(), _CLEAR)
    for each in owners:
        function(each._cdata)


def has_memory(storage: Any) -> bool:
    """Return whether the memory of a storage of torch's allocator was not taken."""
    return bool(storage.resizable())


def release(owners: Iterable[Any]) -> None:
    """Free the memory of storages, whatever still refers to them; in C, too."""
    resize = cast(Any, torch_cuda.loaded()).UntypedStorage.resize_
    deque(map(resize, owners, repeat(0)), maxlen=0)


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


def allocate(device: Any, nbytes: int, stream: int) -> Any:
    """Return a new storage, allocated for the stream of this handle.

    Raises:
        torch.OutOfMemoryError: the device has too little memory.
    """
    torch = cast(Any, torch_cuda.loaded())
    if not stream:
        chosen = torch.cuda.default_stream(device)
    else:
        chosen = torch.cuda.ExternalStream(stream, device=device)
    with torch.cuda.stream(chosen):
        return torch.UntypedStorage(nbytes, device=device)


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


# --- torch's own functions of tensors, also where a subclass or a mode overrides them -------------


def tensor_base() -> Any:
    """Return the C++ base class of all tensors, with its own methods."""
    return cast(Any, torch_cuda.loaded())._C.TensorBase


def storage_address() -> Callable[[Any], int]:
    """Return a function that returns the address of a tensor's storage, also for a view.

    Where torch has it, `torch._C._data_address`: unlike ``data_ptr()`` it does not copy a lazily
    copied storage.
    """
    private = getattr(cast(Any, torch_cuda.loaded())._C, "_data_address", None)
    if private is not None:
        return cast("Callable[[Any], int]", private)
    return lambda tensor: int(tensor_base().untyped_storage(tensor).data_ptr())


@contextmanager
def plain_functions() -> Iterator[None]:
    """Disable modes and overrides of subclasses within the scope."""
    torch: Any = torch_cuda.loaded()
    if torch is None:
        yield
        return
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield
