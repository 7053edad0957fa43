"""The time of each line: Python's, the GPU's, and waits of the one for the other.

Where one line ends and the next begins, the clock is read and a mark recorded, unless the host was
too short in the line to launch anything. A line has the GPU's time from the end of all work queued
before it to the end of all work queued by its end. Where the GPU had nothing to do in between, it
may have been idle for as long as the host was in the line: then the time is an upper bound.

A wait needs no other evidence than times: when the line began, the GPU had work, and the line ended
when that was done.

A mark is an event on the current stream of each device that has a context, and on its other busy
streams; recording it waits for nothing. A GPU's clock runs at a rate that is slightly its own. But
no mark is reached before it is recorded, and one that is recorded on an idle GPU is reached at
once: so the largest distance between the two, of late, is the distance between the clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.cells.line_sources import CodeLine
from gpumagic.cuda import streams, torch_cuda
from gpumagic.results.timing import is_bound
from gpumagic.timing.event_timer import CLOCKS, DRIFT, Clocks

if TYPE_CHECKING:
    from torch.cuda import Stream

# --- the marks ------------------------------------------------------------------------------------


#: The events that each device has from the beginning: CUDA makes each at its first recording.
_FIRST_EVENTS = 256
#: How often clocks are compared at first: a process may lose the processor meanwhile.
_COMPARED = 3


class DeviceMarks:
    """The events on one device that has a context."""

    def __init__(self, ordinal: int, unused_until: float = inf, clocks: Clocks = CLOCKS) -> None:
        """Wait until the device is idle: once for each device, mostly before the cell.

        Args:
            ordinal: The device.
            unused_until: When the line began that has used the device first.
            clocks: What times are read from.
        """
        self.ordinal, self._between = ordinal, clocks.between
        self._unused_until = inf
        torch: Any = torch_cuda.loaded()
        #: torch's C functions: what Python adds to them takes longer, and a cell may replace it.
        event, self._is_idle = torch._C._CudaEventBase, torch._C._CudaStreamBase.query
        self._record, self._is_done = event.record, event.query
        self._current_stream = torch._C._cuda_getCurrentRawStream
        self._new_event = torch.cuda.Event
        self._of_device = streams.of(ordinal)
        #: Those that were current, or busy once, by handle.
        self._streams: dict[int, Any] = {}
        self._free: list[Any] = []
        torch_cuda.synchronize(ordinal)
        self._free = [event for _ in range(_FIRST_EVENTS) for event in self.record()]
        torch_cuda.synchronize(ordinal)
        #: When the last mark that was read was reached, by the GPU's clock; and what to add.
        self._seconds, self._distance = clocks.host(), 0.0
        [self._last] = self.record()
        for _ in range(_COMPARED):
            recorded = clocks.host()
            events = self.record()
            torch_cuda.synchronize(ordinal)
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
        if any(map(streams.captures, self._streams.values())):
            return []
        if len(self._streams) == 1 and self._free:  # nothing is queried, and no event made
            return [self._event(own)]
        with streams.Relaxed():
            busy = (x for x in self._streams.values() if x is own or not self._is_idle(x))
            return [self._event(stream) for stream in busy]

    def _event(self, stream: Stream) -> Any:
        event = self._free.pop() if self._free else self._new_event(enable_timing=True)
        self._record(event, stream)
        return event

    def look(self) -> list[Any]:
        """Record events on the streams of torch's that are busy for the first time."""
        used = self._of_device.used()
        if any(map(streams.captures, used)):
            return []
        new = {s.cuda_stream: s for s in used if s.cuda_stream not in self._streams}
        with streams.Relaxed():
            new = {handle: stream for handle, stream in new.items() if streams.is_busy(stream)}
            self._streams |= new
            return [self._event(stream) for stream in new.values()]

    def is_reached(self, events: list[Any]) -> bool:
        return all(map(self._is_done, events))

    def read(self, events: list[Any], recorded: float) -> tuple[float, float]:
        """Return when the work before the last mark was done, and that before this one, reached.

        In the order in which the marks were recorded.
        """
        before = self._seconds
        for event in events:
            # From mark to mark: CUDA's seconds are 32-bit floats.
            passed = self._between(self._last, event)
            if passed > 0.0:
                self._seconds += passed
                self._last, event = event, self._last
            # Else an earlier one on another stream was reached later, and the work done with that.
            self._free.append(event)
        drift = DRIFT * (self._seconds - before)
        self._distance = max(self._distance - drift, recorded - self._seconds)
        first, self._unused_until = self._unused_until, inf
        return min(first, before + self._distance), self._seconds + self._distance


# --- the times ------------------------------------------------------------------------------------


#: Seconds in which nothing can be launched: that takes the driver more than 1 µs.
_NO_LAUNCH = 0.3e-6
#: Seconds in which no device comes into use: a context took a card 20 ms or more.
_NO_CONTEXT = 2e-3
#: So many marks wait to be read.
_WAITING = 256
#: In the first runs of a line all streams are looked at, which takes 10 to 100 µs.
_LOOKS = 2
#: Seconds of the shortest wait.
_LEAST = 0.1e-3
#: Seconds for which a line that waited may go on when the GPU is done.
_LATE = 0.2e-3
#: And a part of the wait.
_LATE_PART = 0.05
#: The part of a line's runs with work to wait for that must have waited: few may be a coincidence.
_MOST = 1 / 3
#: The least number of them, or half of all.
_SURE = 3
#: Seconds between two marks without work, at most.
_MARKS = 20e-6
#: The part of a time by which two clocks may differ, with a margin.
_CLOCKS = 0.01


class LineTime:
    """The times of a line, in seconds, summed over its runs."""

    __slots__ = ("certain", "could_wait", "gpu", "host", "per_device", "waits")

    def __init__(self) -> None:
        #: Python's, the GPU's at most, and for how much of that the GPU was busy for certain.
        self.host = self.gpu = self.certain = 0.0
        #: By CUDA ordinal: the same two of that device alone.
        self.per_device: dict[int, tuple[float, float]] = {}
        #: Runs in which there was something to wait for, and each wait.
        self.could_wait = 0
        self.waits: list[float] = []

    @property
    def at_most(self) -> bool:
        """Whether the GPU's time is an upper bound."""
        return is_bound(self.gpu, self.certain)

    @property
    def sure_waits(self) -> list[float]:
        """The waits, if they are no coincidence."""
        least = max(_MOST * self.could_wait, min(_SURE, self.could_wait / 2))
        return self.waits if self.waits and len(self.waits) >= least else []


class _Boundary(NamedTuple):
    """A mark that is not yet read, and the lines that it ends."""

    lines: tuple[CodeLine, ...]
    began: float
    ended: float
    mark: Sequence[tuple[DeviceMarks, list[Any]]]
    #: When recording the mark began, and when it was recorded.
    recorded: float
    queued: float


class LineTimes:
    """Counts the times of lines, by the `switch` of a `LineTracer`.

    ``prepare``, ``start``, the traced code, ``stop``, ``finish``. The figures of a line are its
    `LineTime`.
    """

    def __init__(self, clocks: Clocks = CLOCKS) -> None:
        self._clocks, self._clock = clocks, clocks.host
        #: Seconds that tracing takes at each boundary, beside what is measured here.
        self.tracing = 0.0
        #: Those that have a context.
        self._devices: list[DeviceMarks] = []
        self._lines: tuple[CodeLine, ...] = ()
        self._waiting: deque[_Boundary] = deque()
        self._read_at = _WAITING
        #: Seconds that the boundaries took, and their number.
        self.own, self.boundaries = 0.0, 0

    def prepare(self, began: float = inf) -> None:
        """Make events on devices that have come into use, each once it is idle: this takes time.

        ``began``: when the line began in which they did.
        """
        known = {device.ordinal for device in self._devices}
        new = [ordinal for ordinal in torch_cuda.contexts() if ordinal not in known]
        with streams.Relaxed():
            if new and not streams.under_way(new):
                self._devices += [DeviceMarks(i, began, self._clocks) for i in new]

    def start(self) -> None:
        """Begin, in no line."""
        self._began = self._clock()

    def switch(self, lines: tuple[CodeLine, ...]) -> None:
        """End the lines that ran until now, and begin others."""
        ended = self._clock()
        passed = ended - self._began - self.tracing
        for line in self._lines:
            line.figures.host += max(passed, 0.0)
        if passed > _NO_LAUNCH:
            self._mark(ended)
        self._lines = lines
        self.boundaries += 1
        self._began = began = self._clock()
        self.own += began - ended

    def stop(self) -> None:
        """Record the last mark; waits for nothing."""
        self.switch(())

    def finish(self) -> None:
        """Read the marks when the GPU has finished.

        Raises:
            RuntimeError: a device has failed.
        """
        with streams.Relaxed():
            while self._waiting:
                # Marks are reached in another order on several streams; none takes long now.
                if not _is_reached(self._waiting[-1]):
                    sleep(1e-4)
                self._read()

    def release(self) -> None:
        """Free the events.

        What is garbage in a cycle may be freed in a process that was forked meanwhile: there an
        event's destructor ends the process, as CUDA has no context.
        """
        self._waiting.clear()
        self._devices.clear()

    def _mark(self, ended: float) -> None:
        """Record a mark; none while a graph is captured."""
        if ended - self._began > _NO_CONTEXT:
            self.prepare(self._began)
        recorded = self._clock()
        mark = [(device, device.record()) for device in self._devices]
        if not mark or not all(events for _, events in mark):
            return
        if self._lines and self._lines[0].hits <= _LOOKS:
            for device, events in mark:  # last: it takes time, in which the GPU may be idle
                events += device.look()
        times = (self._began, ended, mark, recorded, self._clock())
        self._waiting.append(_Boundary(self._lines, *times))
        if len(self._waiting) >= self._read_at:
            with streams.Relaxed():
                self._read()
            self._read_at = len(self._waiting) + _WAITING

    def _read(self) -> None:
        """Read the marks that are reached."""
        while self._waiting and _is_reached(self._waiting[0]):
            boundary = self._waiting.popleft()
            _add(boundary, {d.ordinal: d.read(e, boundary.recorded) for d, e in boundary.mark})


def _is_reached(boundary: _Boundary) -> bool:
    """Return whether all work before a mark is done."""
    return all(device.is_reached(events) for device, events in boundary.mark)


def _add(boundary: _Boundary, done: Mapping[int, tuple[float, float]]) -> None:
    """Add the time between two marks: when the work before each was done, by device."""
    lines, began, ended, _, _, queued = boundary
    of_devices = {i: _gpu_time(then, now, began, queued) for i, (then, now) in done.items()}
    before, after = map(max, zip(*done.values(), strict=True))
    gpu, sure = _gpu_time(before, after, began, queued)
    waited, late = before - began, ended - before
    # A `for` line waits for its next value, which may take as long as the GPU.
    could_wait = min(waited, ended - began) > _LEAST and not (lines and lines[0].loop)
    has_waited = -_LATE_PART * waited < late < min(_LATE + _LATE_PART * waited, 2 * waited)
    for line in lines:
        time: LineTime = line.figures
        time.gpu += gpu
        time.certain += sure
        for ordinal, (seconds, certain) in of_devices.items():
            known = time.per_device.get(ordinal, (0.0, 0.0))
            time.per_device[ordinal] = known[0] + seconds, known[1] + certain
        if could_wait:
            time.could_wait += 1
            if has_waited:
                time.waits.append(waited)


def _gpu_time(before: float, after: float, began: float, queued: float) -> tuple[float, float]:
    """Return the GPU's time between two marks, and how much of it it was busy for certain.

    Args:
        before: When the work before the first mark was done.
        after: When the work before the second mark was done.
        began: When the host began the line.
        queued: When the second mark had been recorded: the GPU had no gap from then on.
    """
    start = max(before, began)  # what the line launched did not begin before it
    gpu = max(after - start, 0.0)
    return gpu, gpu - max(min(after, queued) - start, 0.0)


def surely_worked(
    lines: Iterable[CodeLine], devices: Iterable[int]
) -> tuple[float, dict[int, float]]:
    """Return the seconds for which some GPU surely worked, and each that did: more than marks take.

    Args:
        lines: The cell's.
        devices: The CUDA ordinals in question.
    """
    together, found = 0.0, dict.fromkeys(devices, 0.0)
    for line in lines:
        time, marks = line.figures, _MARKS * line.hits
        together += max(time.certain - _CLOCKS * time.gpu - marks, 0.0)
        for ordinal, (most, certain) in time.per_device.items():
            if ordinal in found:
                found[ordinal] += max(certain - _CLOCKS * most - marks, 0.0)
    return together, {ordinal: seconds for ordinal, seconds in found.items() if seconds}
