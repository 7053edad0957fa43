"""Memory of a device from the driver itself, which torch's allocator neither counts nor keeps.

No tensor is made, so that no mode of the user's sees one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpumagic.cuda import driver
from gpumagic.cuda.driver import SUCCESS
from gpumagic.cuda.graph_capture import RelaxedMode
from gpumagic.errors import DeviceError

OUT_OF_MEMORY = 2


class DriverMemory:
    """Some bytes of a device that has a primary context, until `free`.

    Raises:
        DeviceError: they cannot be allocated; ``code`` is the driver's.
    """

    def __init__(self, ordinal: int, size: int) -> None:
        self._ordinal = ordinal
        self._size = size
        self._address = ctypes.c_void_p()
        with _primary_context(ordinal) as library:
            code = library.cuMemAlloc_v2(ctypes.byref(self._address), ctypes.c_size_t(size))
        if code == OUT_OF_MEMORY:
            raise DeviceError(
                f"no memory on cuda:{ordinal} for {size:,} bytes; torch.cuda.empty_cache() frees "
                "what torch keeps unused"
            )
        self._check(code)

    def fill(self, stream: int) -> None:
        """Write zeros to all of it, on the stream with that handle.

        Raises:
            DeviceError: the driver returns an error.
        """
        size, handle = ctypes.c_size_t(self._size), ctypes.c_void_p(stream)
        with _primary_context(self._ordinal) as library:
            code = library.cuMemsetD8Async(self._address, 0, size, handle)
        self._check(code)

    def free(self) -> None:
        """Free it; a device that has failed has nothing to free."""
        address, self._address = self._address, ctypes.c_void_p()
        with suppress(DeviceError), _primary_context(self._ordinal) as library:
            library.cuMemFree_v2(address)

    def _check(self, code: int) -> None:
        if code != SUCCESS:
            raise DeviceError(f"cuda:{self._ordinal}: CUDA error {code}")


@contextmanager
def _primary_context(ordinal: int) -> Iterator[Any]:
    """Make a device's primary context current, in relaxed mode; return the driver's library.

    In that mode no graph that is being captured ends by what the scope does.
    """
    library, device, context = driver.loaded_library(), ctypes.c_int(), ctypes.c_void_p()
    if library is None:
        raise DeviceError("CUDA's driver library is not loaded")
    library.cuDeviceGet(ctypes.byref(device), ordinal)
    code = library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if code != SUCCESS:
        raise DeviceError(f"cuda:{ordinal}: CUDA error {code}")
    try:
        library.cuCtxPushCurrent_v2(context)
        try:
            with RelaxedMode():
                yield library
        finally:
            library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        library.cuDevicePrimaryCtxRelease_v2(device)
