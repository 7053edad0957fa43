"""Empty L2 caches before a run, for ``--cold``.

A cache is emptied by writing more than it holds, to the driver's own memory, not torch's: the
user's peak, what torch has reserved and the sign of an allocation stay as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from gpumagic.cuda import driver
from gpumagic.cuda.pytorch import graph_captures, streams, torch_cuda, waiting
from gpumagic.errors import DeviceError

#: Bytes written to empty a cache, in sizes of the cache.
_CACHES = 2


class ColdCaches:
    """Empties caches; `release` frees the memory that this takes."""

    def __init__(self) -> None:
        #: Address and bytes of what is written, by ordinal.
        self._buffers: dict[int, tuple[ctypes.c_uint64, int]] = {}

    def empty(self) -> None:
        """Write more to each device in use than its L2 cache holds.

        Raises:
            DeviceError: a device does not report its cache's size, or has no memory to write to; or
                a CUDA graph is being captured, of which writing would become a part.
        """
        ordinals = torch_cuda.contexts()
        if graph_captures.under_way(ordinals):
            raise DeviceError("an L2 cache cannot be emptied while a CUDA graph is being captured")
        torch = cast(Any, torch_cuda.loaded())
        for ordinal in ordinals:
            with torch.cuda.device(ordinal):
                if ordinal not in self._buffers:
                    self._buffers[ordinal] = _allocated(ordinal)
                address, size = self._buffers[ordinal]
                stream = ctypes.c_void_p(streams.of(ordinal).current().cuda_stream)
                code = _driver().cuMemsetD8Async(address, 0, ctypes.c_size_t(size), stream)
                if code != driver.SUCCESS:
                    raise DeviceError(f"the L2 cache of cuda:{ordinal} was not emptied: {code}")

    @contextmanager
    def emptied(self, scope: AbstractContextManager[None]) -> Iterator[None]:
        """Open ``scope`` when the caches have been emptied."""
        self.empty()
        with scope:
            yield

    def release(self) -> None:
        """Free what was written, which waits for the device."""
        while self._buffers:
            ordinal, (address, _) = self._buffers.popitem()
            with cast(Any, torch_cuda.loaded()).cuda.device(ordinal):
                _driver().cuMemFree_v2(address)

    def note(self) -> str:
        """Return what was emptied, or why nothing was."""
        sizes = [f"cuda:{i} {n // _CACHES / 2**20:.3g} MiB" for i, (_, n) in self._buffers.items()]
        if not sizes:
            return "--cold had no effect: no GPU is in use"
        return f"L2 cache flushed before each loop: {', '.join(sizes)}"


def _driver() -> Any:
    library = driver.loaded_library()
    if library is None:
        raise DeviceError("an L2 cache is emptied by CUDA's driver, which is not loaded")
    return library


def _allocated(ordinal: int) -> tuple[ctypes.c_uint64, int]:
    """Return memory on the current device."""
    properties = cast(Any, torch_cuda.loaded()).cuda.get_device_properties(ordinal)
    size, address = _CACHES * getattr(properties, "L2_cache_size", 0), ctypes.c_uint64()
    if not size:
        raise DeviceError(f"cuda:{ordinal} does not report the size of its L2 cache")
    waiting.synchronize(ordinal)  # before CUDA 12, this makes the context the thread's
    if _driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) != driver.SUCCESS:
        raise DeviceError(f"no memory on cuda:{ordinal} to empty its L2 cache with")
    return address, size
