"""Marks in a device's work: how far the GPU had come when a line of Python code ended.

A mark is an event on the current stream of a device that has a context, and on its other busy
streams; recording it waits for nothing. A GPU's clock runs at a rate that is slightly its own. But
no mark is reached before it is recorded, and one that is recorded on an idle GPU is reached at
once: so the largest distance between the two, of late, is the distance between the clocks.
"""

from __future__ import annotations

from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpumagic.cuda.pytorch import cuda_events, graph_captures, streams, torch_cuda, waiting
from gpumagic.timing.event_timer import DRIFT

if TYPE_CHECKING:
    from torch.cuda import Stream

#: The events that each device has from the beginning: CUDA makes each at its first recording.
_FIRST_EVENTS = 256
#: How often clocks are compared at first: a process may lose the processor meanwhile.
_COMPARED = 3


class DeviceMarks:
    """The events on one device that has a context."""

    def __init__(self, ordinal: int, unused_until: float = inf) -> None:
        """Wait until the device is idle: once for each device, mostly before the cell.

        ``unused_until``: when the line began that has used the device first.
        """
        self.ordinal = ordinal
        self._unused_until = inf
        torch: Any = torch_cuda.loaded()
        #: The C functions of torch: its Python functions take longer, and a cell may replace them.
        event, self._is_idle = torch._C._CudaEventBase, torch._C._CudaStreamBase.query
        self._record, self._is_done = event.record, event.query
        self._current_stream = torch._C._cuda_getCurrentRawStream
        self._new_event = torch.cuda.Event
        self._of_device = streams.of(ordinal)
        #: The streams that were current, or busy once, by handle.
        self._streams: dict[int, Any] = {}
        self._free: list[Any] = []
        waiting.synchronize(ordinal)
        self._free = [event for _ in range(_FIRST_EVENTS) for event in self.record()]
        waiting.synchronize(ordinal)
        #: When the GPU reached the mark that was read last, by the GPU's clock; and what to add to
        #: get the host's clock.
        self._seconds, self._distance = perf_counter(), 0.0
        [self._last] = self.record()
        for _ in range(_COMPARED):
            recorded = perf_counter()
            events = self.record()
            waiting.synchronize(ordinal)
            self.read(events, recorded)
        self._unused_until = unused_until

    def record(self) -> list[Any]:
        """Record events on the current stream, and on the others in use that are busy.

        None on a device on which a graph is captured: a query would end that.
        """
        current = self._current_stream(self.ordinal)
        if current not in self._streams:
            self._streams[current] = torch_cuda.current_stream(self.ordinal)
        own = self._streams[current]
        if any(map(graph_captures.is_capturing, self._streams.values())):
            return []
        if len(self._streams) == 1 and self._free:  # nothing is queried, and no event made
            return [self._event(own)]
        with graph_captures.Relaxed():
            busy = (x for x in self._streams.values() if x is own or not self._is_idle(x))
            return [self._event(stream) for stream in busy]

    def _event(self, stream: Stream) -> Any:
        event = self._free.pop() if self._free else self._new_event(enable_timing=True)
        self._record(event, stream)
        return event

    def look(self) -> list[Any]:
        """Record events on the streams of torch's that are busy for the first time."""
        used = self._of_device.used()
        if any(map(graph_captures.is_capturing, used)):
            return []
        new = {s.cuda_stream: s for s in used if s.cuda_stream not in self._streams}
        with graph_captures.Relaxed():
            new = {handle: stream for handle, stream in new.items() if streams.is_busy(stream)}
            self._streams |= new
            return [self._event(stream) for stream in new.values()]

    def is_reached(self, events: list[Any]) -> bool:
        return all(map(self._is_done, events))

    def read(self, events: list[Any], recorded: float) -> tuple[float, float]:
        """Return when the work before the last mark was done, and the work before this mark.

        This mark was reached. Marks are read in the order in which they were recorded.
        """
        before = self._seconds
        for event in events:
            # From mark to mark: CUDA's seconds are 32-bit floats.
            passed = cuda_events.seconds_between(self._last, event)
            if passed > 0.0:
                self._seconds += passed
                self._last, event = event, self._last
            # Else an earlier event on another stream was reached later: that ended the work.
            self._free.append(event)
        drift = DRIFT * (self._seconds - before)
        self._distance = max(self._distance - drift, recorded - self._seconds)
        first, self._unused_until = self._unused_until, inf
        return min(first, before + self._distance), self._seconds + self._distance
