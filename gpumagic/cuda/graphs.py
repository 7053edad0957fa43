"""Detect CUDA graphs that are being captured, without ending the capture.

A capture, in this thread or another one, ends with an error when a capturing stream is queried, or
when a device is synchronised. In torch's capture mode ("global") it also ends when any thread
queries an event, unless that thread is in relaxed mode. The driver is queried by ctypes: torch
knows only the calling thread's current stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from gpumagic.cuda import driver, torch_cuda

#: CU_STREAM_CAPTURE_MODE_RELAXED: no call of this thread is unsafe for other threads' captures.
_RELAXED = 2


def _driver_function(name: str) -> Any:
    """Return a function of the driver; None where the driver is not loaded.

    A call does not release the GIL, which would take longer than the call.
    """
    library = driver.loaded_library()
    with_gil = None if library is None else ctypes.PyDLL(library._name, handle=library._handle)
    return getattr(with_gil, name, None)


class CaptureQuery:
    """A query whether any of some streams is capturing a graph; allowed at any time."""

    def __init__(self, streams: Iterable[Any]) -> None:
        # CUDA cannot capture on its default stream, 0.
        handles = [stream.cuda_stream for stream in streams if stream.cuda_stream]
        self._states = (ctypes.c_int * len(handles))()
        self._arguments: tuple[Sequence[Any], Sequence[Any]] = (
            [ctypes.c_void_p(handle) for handle in handles],
            [ctypes.byref(self._states, 4 * place) for place in range(len(handles))],
        )
        self._query = _driver_function("cuStreamIsCapturing")

    def __call__(self) -> bool:
        if self._query is None:
            return False
        list(map(self._query, *self._arguments))  # a call that fails leaves 0
        return any(bytes(self._states))


_queries: dict[int, CaptureQuery] = {}


def under_way(ordinals: Iterable[int]) -> bool:
    """Return whether any thread is capturing a graph on one of torch's streams.

    Only for devices that have a context.
    """
    ordinals = tuple(ordinals)
    return torch_cuda.capturing(ordinals) or any(query(ordinal)() for ordinal in ordinals)


def query(ordinal: int) -> CaptureQuery:
    """Return the query of all of torch's streams on a device that has a context."""
    if ordinal not in _queries:
        _queries[ordinal] = CaptureQuery(torch_cuda.streams(ordinal))
    return _queries[ordinal]


class RelaxedMode:
    """A reusable scope in which event queries of this thread end no other thread's capture."""

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
