"""The conditions of a measurement: an empty L2 cache, clocks not throttled."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any, cast

from gpumagic.cuda import graph_capture, torch_cuda
from gpumagic.cuda.driver_memory import DriverMemory
from gpumagic.errors import DeviceError

#: Seconds between two queries of NVML.
_INTERVAL = 0.1
#: Bytes written to empty a cache, in sizes of the cache.
_SIZES = 2


class Flush:
    """Empties the L2 cache of every device in use, by writing more than it holds.

    That memory is not torch's: it is in no figure of the user's.

    Raises:
        DeviceError: a device does not report its cache's size, or there is no memory to write to.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, DriverMemory] = {}
        #: The caches' sizes in bytes, by ordinal.
        self.sizes: dict[int, int] = {}

    def __call__(self) -> None:
        ordinals = torch_cuda.contexts()
        if graph_capture.under_way(ordinals):
            return  # writing would become a part of the graph, and there is no GPU time anyway
        for ordinal in ordinals:
            if ordinal not in self._buffers:
                self._buffers[ordinal] = self._buffer(ordinal)
            self._buffers[ordinal].fill(torch_cuda.current_stream(ordinal).cuda_stream)

    def release(self) -> None:
        """Free the memory; the sizes stay known."""
        while self._buffers:
            self._buffers.popitem()[1].free()

    def _buffer(self, ordinal: int) -> DriverMemory:
        torch = cast(Any, torch_cuda.loaded())
        size = getattr(torch.cuda.get_device_properties(ordinal), "L2_cache_size", 0)
        if not size:
            raise DeviceError(f"cuda:{ordinal} does not report the size of its L2 cache")
        self.sizes[ordinal] = size
        try:
            return DriverMemory(ordinal, _SIZES * size)
        except DeviceError as error:
            raise DeviceError(f"the L2 cache cannot be emptied: {error}") from None


class Clocks:
    """The reasons why clocks are throttled, collected from NVML at intervals."""

    def __init__(self) -> None:
        self._last = -_INTERVAL
        self._uuids: dict[int, str] = {}
        #: The reasons so far, by ordinal.
        self.reasons: dict[int, tuple[str, ...]] = {}

    def query(self, ordinals: Iterable[int], *, at_once: bool = False) -> None:
        """Ask NVML, if the last query is long enough ago; without NVML there are no reasons."""
        recent = perf_counter() - self._last < _INTERVAL
        if not torch_cuda.initialized() or (recent and not at_once):
            return
        from gpumagic.cuda import nvml

        try:
            session = nvml.session()
        except DeviceError:
            return
        for ordinal in ordinals:
            uuid = self._uuids.get(ordinal) or torch_cuda.uuid(ordinal)
            self._uuids[ordinal] = uuid
            known = self.reasons.get(ordinal, ())
            more = [reason for reason in session.clock_reasons(uuid) if reason not in known]
            if more:
                self.reasons[ordinal] = (*known, *more)
        self._last = perf_counter()
