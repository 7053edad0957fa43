"""GPU time of a cell that is not to be disturbed: no wait before it, none for the whole device.

The first mark goes behind whatever a device's current stream has still to do for earlier cells, so
that their work is not counted twice. At the cell's end only streams that are at work get a second
mark, and only those marks are waited for: what other threads go on launching holds nobody up.

Whether a cell has used the GPU at all is known by its signs: a stream is at work at its end, or
torch's allocator has served something. A cell that only ran kernels on tensors that were there, and
waited for them itself, shows neither; nor does work on a stream that is not torch's, unless the
default stream waits for it. (A mark behind all work of a device, as `context_event` makes,
would spoil a graph that another library is capturing.)
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from gpumagic.cuda import graph_capture, torch_cuda
from gpumagic.system import text
from gpumagic.timing.event_timer import Reading, wait_for

#: Seconds between two marks that stand one behind the other with nothing between, with a margin.
_NOTHING = 50e-6
CAPTURE = "a CUDA graph is being captured, and nobody may wait then"


class _CaptureError(RuntimeError):
    pass


class _Clock:
    """The marks on one device, one cell after the other.

    Around every cell of a session: torch's own functions are asked for once, and its objects for
    streams that are known are not made anew.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._c = torch_cuda.c_functions()
        self._is_idle: Callable[[Any], bool] = self._c._CudaStreamBase.query
        self._streams = torch_cuda.streams(ordinal)
        self._by_handle = {stream.cuda_stream: stream for stream in self._streams}
        self._captured = graph_capture.question(ordinal)
        self._allocations = torch_cuda.allocations(ordinal)
        self._start = torch_cuda.timing_event(torch_cuda.current_stream(ordinal))

    def _current(self) -> Any:
        stream = self._by_handle.get(self._c._cuda_getCurrentRawStream(self.ordinal))
        return torch_cuda.current_stream(self.ordinal) if stream is None else stream

    def mark_start(self) -> None:
        self._start.record(self._current())

    def mark_stop(self, *, side_streams: bool) -> bool:
        """Set the second marks, on each stream that is at work; False for no sign of work.

        Raises:
            _CaptureError: another thread is capturing a graph on a stream of this device.
        """
        stream = self._current()
        self._busy = not self._is_idle(stream)
        # Of this cell, if the first mark has been passed and there is still work behind it.
        self._own = self._busy and self._start.query() and not self._is_idle(stream)
        # The reading at a cell's end is the next one's beginning: it takes longest of all this.
        before, self._allocations = self._allocations, torch_cuda.allocations(self.ordinal)
        self._allocated = before != self._allocations
        quiet = not (self._busy or self._allocated)
        # At once: looking for the others takes as long as a little work would.
        own = None if quiet else torch_cuda.timing_event(stream)
        if (side_streams or not quiet) and self._captured():
            raise _CaptureError  # and would fail if its streams were asked whether they are idle
        if quiet and not (side_streams and not all(map(self._is_idle, self._streams))):
            return False
        own = own or torch_cuda.timing_event(stream)
        busy = [other for other in self._streams if not self._is_idle(other)]
        others = [torch_cuda.timing_event(other) for other in busy if other != stream]
        self._side = bool(others)
        self._stops = [own, *others]
        return self._side or not quiet

    def read(self, host_start: float, host_stop: float) -> Reading:
        """Wait for the second marks that `mark_stop` has set."""
        for mark in self._stops:
            wait_for(mark)
        seconds = max(self._start.elapsed_time(mark) for mark in self._stops) / 1e3
        idle = not (self._busy or self._side)
        worked = self._allocated or self._side or self._own
        if not worked:
            # Behind an earlier cell's work a stream is at work without any of this one's: then the
            # first mark came late, and the second at once after it.
            worked = seconds > min(_NOTHING, host_stop - host_start)
        # The marks themselves took time too, where nothing was left to do.
        finished = perf_counter() if worked and not idle else host_stop
        # The host may have been held up between the mark and its own clock.
        seconds = min(seconds, finished - host_start)
        return Reading(seconds, idle, worked, finished)


class Passing:
    """Marks around one cell after the other: `start`, the cell, `stop`.

    Nothing here raises because of a device: `note` says in a line what could not be measured.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, _Clock] = {}
        self._running: list[_Clock] = []
        self._harmless = graph_capture.Harmless()
        self.note: str | None = None

    def start(self) -> None:
        """The first marks."""
        self.note = None
        self._running = []
        try:
            for ordinal in self._measurable():
                clock = self._clocks.get(ordinal)
                if clock is None:
                    clock = self._clocks[ordinal] = _Clock(ordinal)
                clock.mark_start()
                self._running.append(clock)
        except RuntimeError as error:
            self._give_up(error)

    def stop(self, host_start: float, host_stop: float) -> dict[int, Reading]:
        """The second marks, and what each device did that shows a sign of work.

        On `time.perf_counter`'s clock the code ran between the two times.
        """
        if self.note is not None:
            return {}
        try:
            ordinals = self._measurable()
            if not ordinals:
                return {}
            with self._harmless:
                return self._read(ordinals, host_start, host_stop)
        except _CaptureError:
            self.note = CAPTURE
        except RuntimeError as error:
            self._give_up(error)
        return {}

    def _read(
        self, ordinals: tuple[int, ...], host_start: float, host_stop: float
    ) -> dict[int, Reading]:
        current = torch_cuda.current_device()
        worked = [
            clock
            for clock in self._running
            if clock.mark_stop(side_streams=clock.ordinal == current)
        ]
        if not worked and len(ordinals) == len(self._running):
            return {}
        readings = {clock.ordinal: clock.read(host_start, host_stop) for clock in worked}
        known = [clock.ordinal for clock in self._running]
        for ordinal in ordinals:
            if ordinal not in known:  # its context was made by the cell
                readings[ordinal] = self._first_use(ordinal)
        return dict(sorted(readings.items()))

    def _first_use(self, ordinal: int) -> Reading:
        if graph_capture.question(ordinal)():
            raise _CaptureError
        for stream in torch_cuda.busy_streams(ordinal):
            wait_for(torch_cuda.timing_event(stream))
        return Reading(None, False, True, perf_counter())

    def _measurable(self) -> tuple[int, ...]:
        ordinals = torch_cuda.contexts()
        if ordinals and torch_cuda.capturing(ordinals):
            self.note = CAPTURE
            return ()
        return ordinals

    def _give_up(self, error: RuntimeError) -> None:
        self._running = []
        self._clocks.clear()
        self.note = f"the GPU cannot be waited for ({text.reason(error)})"
