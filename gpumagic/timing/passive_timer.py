"""GPU time of a cell that is not disturbed: no wait before it, no synchronised device.

The start event is recorded behind whatever a device's current stream still has to do for earlier
cells, so that their work is not counted twice. At the cell's end only busy streams get an end
event, and only these events are waited for: work that other threads go on launching is not.

Two signs show that a cell has used the GPU: a stream is busy at its end, or torch's allocator has
served an allocation. A cell that only ran kernels on existing tensors, and waited for them itself,
shows neither; nor does work on a stream that is not torch's, unless the default stream waits for
it. (An event behind all work of a context, as `context_event` records,
would spoil a graph that another library is capturing.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from gpumagic.cuda import graph_capture, torch_cuda
from gpumagic.timing.event_timer import CaptureError, DeviceTimer, Reading, wait_for

#: Seconds between two successive events with no work between them, with a margin.
_NO_WORK = 50e-6


class _PassiveClock:
    """The events on one device, one cell after the other.

    Used around every cell of a session: torch's own functions are looked up once, and its objects
    for known streams are reused.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._c = torch_cuda.c_functions()
        self._is_idle: Callable[[Any], bool] = self._c._CudaStreamBase.query
        self._streams = torch_cuda.streams(ordinal)
        self._by_handle = {stream.cuda_stream: stream for stream in self._streams}
        self._is_capturing = graph_capture.query(ordinal)
        self._allocations = torch_cuda.allocations(ordinal)
        self._start = torch_cuda.timing_event(torch_cuda.current_stream(ordinal))

    def _current(self) -> Any:
        stream = self._by_handle.get(self._c._cuda_getCurrentRawStream(self.ordinal))
        return torch_cuda.current_stream(self.ordinal) if stream is None else stream

    def record_start(self) -> None:
        self._start.record(self._current())

    def record_stop(self, *, side_streams: bool) -> bool:
        """Record end events on each stream that is busy; return False for no sign of work.

        Raises:
            CaptureError: another thread is capturing a graph on a stream of this device.
        """
        stream = self._current()
        self._busy = not self._is_idle(stream)
        # Of this cell, if the GPU has passed the start event and there is still work behind it.
        self._own = self._busy and self._start.query() and not self._is_idle(stream)
        # The count at a cell's end is the next one's start: reading it takes longest of all this.
        before, self._allocations = self._allocations, torch_cuda.allocations(self.ordinal)
        self._allocated = before != self._allocations
        quiet = not (self._busy or self._allocated)
        # Before looking for the others, which takes as long as short work.
        own = None if quiet else torch_cuda.timing_event(stream)
        if (side_streams or not quiet) and self._is_capturing():
            raise CaptureError  # asking its streams whether they are idle would end the capture
        if quiet and not (side_streams and not all(map(self._is_idle, self._streams))):
            return False
        own = own or torch_cuda.timing_event(stream)
        busy = [other for other in self._streams if not self._is_idle(other)]
        others = [torch_cuda.timing_event(other) for other in busy if other != stream]
        self._side = bool(others)
        self._stops = [own, *others]
        return self._side or not quiet

    def read(self, host_start: float, host_stop: float) -> Reading:
        """Wait for the end events that `record_stop` has recorded."""
        for event in self._stops:
            wait_for(event)
        seconds = max(self._start.elapsed_time(event) for event in self._stops) / 1e3
        idle = not (self._busy or self._side)
        worked = self._allocated or self._side or self._own
        if not worked:
            # A stream may be busy with an earlier cell's work alone: then the start event is
            # reached late, and the end event right after it.
            worked = seconds > min(_NO_WORK, host_stop - host_start)
        # The events themselves took time too, where nothing was left to do.
        finished = perf_counter() if worked and not idle else host_stop
        # The host may have been delayed between the start event and its own clock.
        seconds = min(seconds, finished - host_start)
        return Reading(seconds, idle, worked, finished)


class PassiveTimer(DeviceTimer[_PassiveClock]):
    """Times one cell after the other: `start`, the cell, `stop`."""

    def _new_clock(self, ordinal: int) -> _PassiveClock:
        return _PassiveClock(ordinal)

    def _is_capturing(self, ordinals: tuple[int, ...]) -> bool:
        return torch_cuda.capturing(ordinals)  # other threads are checked where there is work

    def start(self) -> None:
        """Record the start events."""
        self.note = None
        self._running = []
        try:
            for ordinal in self._devices():
                clock = self._clock(ordinal)
                clock.record_start()
                self._running.append(clock)
        except RuntimeError as error:
            self._give_up(error)

    def stop(self, host_start: float, host_stop: float) -> dict[int, Reading]:
        """Record the end events, and return what each device did that shows a sign of work.

        On `time.perf_counter`'s clock the code ran between the two times.
        """
        return self._read(host_start, host_stop)

    def _stop_clocks(self) -> Iterable[_PassiveClock]:
        current = torch_cuda.current_device()
        return [c for c in self._running if c.record_stop(side_streams=c.ordinal == current)]

    def _wait_for_new_device(self, ordinal: int) -> None:
        if graph_capture.query(ordinal)():
            raise CaptureError
        for stream in torch_cuda.busy_streams(ordinal):
            wait_for(torch_cuda.timing_event(stream))
