"""Torch's own functions of tensors and storages, also where a subclass or a mode overrides them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from gpumagic.cuda.pytorch import torch_cuda

if TYPE_CHECKING:
    from torch import UntypedStorage


def as_bytes(storage: UntypedStorage) -> Any:
    """Return a 1-D ``uint8`` tensor of the storage's bytes, which shares its memory."""
    torch = torch_cuda.module()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def tensor_base() -> Any:
    """Return the C++ base class of all tensors, with its own methods."""
    return torch_cuda.module()._C.TensorBase


def storage_address() -> Callable[[Any], int]:
    """Return a function that returns the address of a tensor's storage, also for a view.

    Where torch has it, `torch._C._data_address`: unlike ``data_ptr()`` it does not copy a lazily
    copied storage.
    """
    private = getattr(torch_cuda.module()._C, "_data_address", None)
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
