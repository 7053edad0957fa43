"""Captures of CUDA graphs: whether one is under way, and questions that do not end it.

A capture, in this thread or another one, ends with an error when a capturing stream is queried, or
when a device is synchronised. In torch's capture mode ("global") it also ends when any thread
queries an event or a stream, or reads the time between two events, unless that thread is in relaxed
mode (`Relaxed`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpumagic.cuda import driver
from gpumagic.cuda.pytorch import streams

if TYPE_CHECKING:
    from torch.cuda import Stream

#: CU_STREAM_CAPTURE_MODE_RELAXED: no call of this thread is unsafe for other threads' captures.
_RELAXED = 2
#: The driver with functions that do not release the GIL: that takes longer than they.
_library: Any = None


def _driver() -> Any:
    """Return the driver's functions; None where it is not loaded."""
    global _library
    if _library is None and (library := driver.loaded_library()) is not None:
        _library = ctypes.PyDLL(library._name, handle=library._handle)
    return _library


def is_capturing(stream: Stream) -> bool:
    """Return whether a graph is being captured on a stream; allowed at any time."""
    handle = stream.cuda_stream
    if not handle:  # CUDA cannot capture on its default stream
        return False
    library, state = _driver(), ctypes.c_int()
    if library is None:
        return False
    failed = library.cuStreamIsCapturing(ctypes.c_void_p(handle), ctypes.byref(state))
    return not failed and bool(state.value)


def under_way(ordinals: Iterable[int]) -> bool:
    """Return whether any thread captures a graph on one of torch's streams, or this one elsewhere.

    Only for devices that have a context.
    """
    return any(
        is_capturing(stream) for ordinal in ordinals for stream in streams.of(ordinal).used()
    )


class Relaxed:
    """A scope in which no question of this thread ends another thread's capture.

    Within another one it changes nothing.
    """

    def __enter__(self) -> None:
        #: The mode before; relaxed as long as nothing was exchanged, so that nothing is put back.
        self._mode, self._driver = ctypes.c_int(_RELAXED), _driver()
        try:
            if self._driver is not None and self._exchange() != driver.SUCCESS:
                self._mode.value = _RELAXED
        except BaseException:  # interrupted, perhaps after the exchange
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._mode.value != _RELAXED:
            self._exchange()

    def _exchange(self) -> int:
        found: int = self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(self._mode))
        return found
