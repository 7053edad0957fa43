"""Detect CUDA graphs that are being captured, without ending the capture.

A capture, of this thread or of another one, ends with an error when a capturing stream is queried,
or when a device is synchronised. In torch's mode of capturing ("global") it also ends when any
thread queries an event, unless that thread is in relaxed mode. The driver is asked by ctypes: torch
knows only of the calling thread's current stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from gpumagic.cuda import driver, torch_cuda

#: CU_STREAM_CAPTURE_MODE_RELAXED: no call of this thread counts as unsafe for others' captures.
_RELAXED = 2


def _driver_function(name: str) -> Any:
    """Return a function of the driver; None where it is not loaded.

    A call does not release the GIL, which would take longer than the call.
    """
    library = driver.loaded_library()
    quick = None if library is None else ctypes.PyDLL(library._name, handle=library._handle)
    return getattr(quick, name, None)


class CaptureQuery:
    """A query whether one of some streams is capturing a graph; allowed at any time."""

    def __init__(self, streams: Iterable[Any]) -> None:
        # CUDA cannot capture on its default stream, 0.
        handles = [stream.cuda_stream for stream in streams if stream.cuda_stream]
        self._states = (ctypes.c_int * len(handles))()
        self._arguments: tuple[Sequence[Any], Sequence[Any]] = (
            [ctypes.c_void_p(handle) for handle in handles],
            [ctypes.byref(self._states, 4 * place) for place in range(len(handles))],
        )
        self._ask = _driver_function("cuStreamIsCapturing")

    def __call__(self) -> bool:
        if self._ask is None:
            return False
        list(map(self._ask, *self._arguments))  # 0 stays where a call fails
        return any(bytes(self._states))


_queries: dict[int, CaptureQuery] = {}


def under_way(ordinals: Iterable[int]) -> bool:
    """Return whether a graph is being captured on one of torch's streams, by any thread.

    Only for devices that have a context.
    """
    ordinals = tuple(ordinals)
    return torch_cuda.capturing(ordinals) or any(query(ordinal)() for ordinal in ordinals)


def query(ordinal: int) -> CaptureQuery:
    """Return the query for all of torch's streams on a device that has a context."""
    if ordinal not in _queries:
        _queries[ordinal] = CaptureQuery(torch_cuda.streams(ordinal))
    return _queries[ordinal]


class RelaxedMode:
    """A scope in which this thread's queries of events end no other capture; reusable."""

    def __init__(self) -> None:
        self._mode = ctypes.c_int()
        self._pointer = ctypes.byref(self._mode)
        self._exchange: Any = None

    def __enter__(self) -> None:
        if self._exchange is None:  # the driver may have been loaded meanwhile
            self._exchange = _driver_function("cuThreadExchangeStreamCaptureMode")
        self._mode.value = _RELAXED
        if self._exchange is not None:
            self._exchange(self._pointer)

    def __exit__(self, *error: object) -> None:
        if self._exchange is not None:
            self._exchange(self._pointer)
