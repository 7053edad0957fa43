"""The conditions of a measurement: an empty L2 cache, clocks that nothing holds down, compiling."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from time import perf_counter
from typing import Any, cast

from gpumagic.cuda import graph_capture, torch_cuda
from gpumagic.errors import DeviceError

#: Seconds between two questions to NVML.
_PATIENCE = 0.1
#: What is written to empty a cache, in sizes of the cache.
_SIZES = 2


class Flush:
    """Empties the L2 cache of every device in use, by writing more than it holds.

    Raises:
        DeviceError: a device does not tell its cache's size, or there is no memory to write to.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, Any] = {}
        #: The caches' sizes in bytes, by ordinal.
        self.sizes: dict[int, int] = {}

    def __call__(self) -> None:
        ordinals = torch_cuda.contexts()
        if graph_capture.under_way(ordinals):
            return  # the writing would become a part of the graph, and there is no GPU time anyway
        for ordinal in ordinals:
            if ordinal not in self._buffers:
                self._buffers[ordinal] = self._buffer(ordinal)
            self._buffers[ordinal].zero_()

    def release(self) -> None:
        """Let go of the memory; the sizes stay known."""
        self._buffers.clear()

    def _buffer(self, ordinal: int) -> Any:
        torch = cast(Any, torch_cuda.loaded())
        size = getattr(torch.cuda.get_device_properties(ordinal), "L2_cache_size", 0)
        if not size:
            raise DeviceError(f"cuda:{ordinal} does not tell the size of its L2 cache")
        self.sizes[ordinal] = size
        try:
            return torch.empty(_SIZES * size, dtype=torch.int8, device=f"cuda:{ordinal}")
        except RuntimeError as error:
            raise DeviceError(
                f"no memory on cuda:{ordinal} to empty its L2 cache ({_SIZES * size:,} bytes)"
            ) from error


class Clocks:
    """Asks NVML from time to time what holds the clocks down, and remembers it."""

    def __init__(self) -> None:
        self._last = -_PATIENCE
        self._uuids: dict[int, str] = {}
        #: The reasons so far, by ordinal.
        self.reasons: dict[int, tuple[str, ...]] = {}

    def look(self, ordinals: Iterable[int], *, at_once: bool = False) -> None:
        """Ask, if the last time is long enough ago; a machine without NVML has no reasons."""
        recent = perf_counter() - self._last < _PATIENCE
        if not torch_cuda.initialized() or (recent and not at_once):
            return
        try:
            session = import_module("gpumagic.cuda.nvml").session()
        except DeviceError:
            return
        for ordinal in ordinals:
            uuid = self._uuids.get(ordinal) or _uuid(ordinal)
            self._uuids[ordinal] = uuid
            known = self.reasons.get(ordinal, ())
            more = [why for why in session.held_down(uuid) if why not in known]
            if more:
                self.reasons[ordinal] = (*known, *more)
        self._last = perf_counter()


def _uuid(ordinal: int) -> str:
    properties = cast(Any, torch_cuda.loaded()).cuda.get_device_properties(ordinal)
    return f"GPU-{getattr(properties, 'uuid', '')}"


def compilations() -> int:
    """How many frames torch.compile has compiled in this process so far. Imports nothing."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return 0 if counters is None else int(counters["frames"]["total"])
