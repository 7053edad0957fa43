"""Marks on all devices in use: when all work queued before a moment was done, on the host's clock.

A mark is an event on the current stream of each device that has a context, and on its other busy
streams; recording it waits for nothing. A GPU's clock runs at a rate that is slightly its own. But
no mark is reached before it is recorded, and one that is recorded on an idle GPU is reached at
once: so the largest distance between the two, of late, is the distance between the clocks.
"""

from __future__ import annotations

from math import inf
from time import perf_counter
from typing import Any

from gpumagic.cuda import graphs, torch_cuda

#: How far two clocks drift apart at most, as a part of the time.
_DRIFT = 1e-4
#: The events that each device has from the beginning: CUDA makes each at its first recording.
_FIRST_EVENTS = 256

#: The events of a mark, by device.
Mark = list[list[Any]]


class DeviceMarks:
    """The events on one device that has a context."""

    def __init__(self, ordinal: int, unused_until: float = inf) -> None:
        """Wait until the device is idle: once for each device, mostly before the cell.

        Args:
            ordinal: The device.
            unused_until: When the line began that has used the device first.
        """
        self.ordinal = ordinal
        self._unused_until = unused_until
        torch: Any = torch_cuda.loaded()
        #: torch's C functions: what Python adds to them takes longer, and a cell may replace it.
        self._event_base, self._stream_base = torch._C._CudaEventBase, torch._C._CudaStreamBase
        self._current_stream = torch._C._cuda_getCurrentRawStream
        self._new_event = torch.cuda.Event
        self._streams: dict[int, Any] = {}
        self._free: list[Any] = []
        torch_cuda.synchronize(ordinal)
        self._free = [event for _ in range(_FIRST_EVENTS) for event in self.record()]
        torch_cuda.synchronize(ordinal)
        [self._last] = self.record()
        #: When the last mark that was read was reached, by the GPU's clock; and what to add.
        self._seconds, self._distance = perf_counter(), 0.0

    def record(self) -> list[Any]:
        """Record events on the current stream, and on the others in use that are busy."""
        current = self._current_stream(self.ordinal)
        if current not in self._streams:
            self._streams[current] = torch_cuda.current_stream(self.ordinal)
        if len(self._streams) == 1:
            return [self._event(self._streams[current])]
        return [
            self._event(stream)
            for handle, stream in self._streams.items()
            if handle == current or not self._stream_base.query(stream)
        ]

    def _event(self, stream: Any) -> Any:
        event = self._free.pop() if self._free else self._new_event(enable_timing=True)
        self._event_base.record(event, stream)
        return event

    def look(self) -> list[Any]:
        """Record events on the streams of torch's that are busy for the first time."""
        if graphs.query(self.ordinal)():  # a query would end the capture
            return []
        busy = {stream.cuda_stream: stream for stream in torch_cuda.busy_streams(self.ordinal)}
        new = {handle: stream for handle, stream in busy.items() if handle not in self._streams}
        self._streams |= new
        return [self._event(stream) for stream in new.values()]

    def is_reached(self, events: list[Any]) -> bool:
        return all(map(self._event_base.query, events))

    def read(self, events: list[Any], recorded: float) -> tuple[float, float]:
        """Return when the work before the last mark was done, and that before this one, reached.

        In the order in which the marks were recorded.
        """
        before = self._seconds
        for event in events:
            # From mark to mark: CUDA's seconds are 32-bit floats.
            passed = self._event_base.elapsed_time(self._last, event) / 1e3
            if passed > 0.0:
                self._seconds += passed
                self._last, event = event, self._last
            # Else an earlier one on another stream was reached later, and the work done with that.
            self._free.append(event)
        drift = _DRIFT * (self._seconds - before)
        self._distance = max(self._distance - drift, recorded - self._seconds)
        first, self._unused_until = self._unused_until, inf
        return min(first, before + self._distance), self._seconds + self._distance


class Marks:
    """Marks on all devices that have a context; makes none."""

    def __init__(self) -> None:
        self.devices: list[DeviceMarks] = []
        self._relaxed = graphs.RelaxedMode()

    def add_devices(self, began: float = inf) -> None:
        """Add devices that have come into use, each once it is idle; in a line that began then."""
        known = {device.ordinal for device in self.devices}
        new = [ordinal for ordinal in torch_cuda.contexts() if ordinal not in known]
        if new and not graphs.under_way(new):
            self.devices += [DeviceMarks(ordinal, began) for ordinal in new]

    def record(self, *, look: bool) -> Mark | None:
        """Record a mark; None while a graph is captured. ``look``: at all of torch's streams."""
        if torch_cuda.capturing(device.ordinal for device in self.devices):
            return None
        mark = [device.record() for device in self.devices]
        if look:  # later: it takes 10 to 100 µs, in which the GPU may be idle
            for device, events in zip(self.devices, mark, strict=True):
                events += device.look()
        return mark

    def are_reached(self, mark: Mark) -> bool:
        """Return whether all work before a mark is done."""
        with self._relaxed:
            return all(d.is_reached(events) for d, events in zip(self.devices, mark, strict=False))

    def read(self, mark: Mark, recorded: float) -> list[tuple[float, float]]:
        """Return by device when the work before the last mark, and before this one, was done."""
        return [d.read(events, recorded) for d, events in zip(self.devices, mark, strict=False)]
