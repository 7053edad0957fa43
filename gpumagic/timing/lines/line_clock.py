"""The time that each line takes: Python's, the GPU's, and waits of the one for the other.

Where one line ends and the next begins, the clock is read and a mark recorded, unless the host was
too short in the line to launch anything. A line has the GPU's time from the end of all work queued
before it to the end of all work queued by its end. Where the GPU had nothing to do in between, it
may have been idle for as long as the host was in the line: then the time is an upper bound.

That a line waited for the GPU is known by times alone: when the line began, the GPU had work, and
the line ended when that work was done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from time import perf_counter, sleep
from typing import Any, NamedTuple

from gpumagic.cells.line_sources import CodeLine
from gpumagic.cuda.pytorch import graph_captures, torch_cuda
from gpumagic.results.timing.sample import is_bound
from gpumagic.timing.lines.marks import DeviceMarks

#: Seconds in which nothing can be launched: a launch takes the driver more than 1 µs.
_NO_LAUNCH = 0.3e-6
#: Seconds in which no device comes into use: to make a context took 20 ms or more on a GPU.
_NO_CONTEXT = 2e-3
#: The most marks that wait to be read.
_WAITING = 256
#: The first runs of a line, in which all streams are looked at: a look takes 10 to 100 µs.
_LOOKS = 2
#: Seconds of the shortest wait.
_LEAST = 0.1e-3
#: A line that waited goes on for so many seconds at most after the GPU is done.
_LATE = 0.2e-3
#: The same as a part of the wait, which is added.
_LATE_PART = 0.05
#: In some runs of a line there is GPU work to wait for. The line waits for the GPU if so many of
#: these runs have waited, as a part: fewer may be a coincidence.
_MOST = 1 / 3
#: And so many in number, or half of them.
_SURE = 3
#: The most seconds between two marks without work.
_MARKS = 20e-6
#: The part of a time by which two clocks may differ, with a margin.
_CLOCKS = 0.01


class Busy(NamedTuple):
    """For how long a GPU worked, in seconds: at most, and for certain."""

    most: float = 0.0
    certain: float = 0.0

    @property
    def at_most(self) -> bool:
        """Whether the time is an upper bound."""
        return is_bound(*self)

    def plus(self, more: Busy) -> Busy:
        return Busy(self.most + more.most, self.certain + more.certain)


class TimeSpent:
    """The time that a line took, in seconds, summed over its runs."""

    def __init__(self) -> None:
        #: Python's.
        self.host = 0.0
        #: The GPU's, by CUDA ordinal; under None, the time of all GPUs together.
        self.busy: dict[int | None, Busy] = {}
        #: The number of runs in which there was GPU work to wait for; the seconds of each wait.
        self.could_wait = 0
        self.waits: list[float] = []

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


class LineClock:
    """Adds up the time that each line takes, by the `switch` of a `LineTracer`.

    ``prepare``, ``start``, the traced code, ``stop``, ``finish``. The figures of a line are its
    `TimeSpent`.
    """

    def __init__(self) -> None:
        #: Seconds that tracing takes at each boundary, beside what is measured here.
        self.tracing = 0.0
        #: The devices that have a context.
        self._devices: list[DeviceMarks] = []
        self._lines: tuple[CodeLine, ...] = ()
        self._waiting: deque[_Boundary] = deque()
        self._read_at = _WAITING
        #: Seconds that the boundaries took, and their number.
        self.own, self.boundaries = 0.0, 0

    def prepare(self, began: float = inf) -> None:
        """Make events on the devices that have come into use; wait until each device is idle.

        ``began``: when the line began in which the devices came into use.
        """
        known = {device.ordinal for device in self._devices}
        new = [ordinal for ordinal in torch_cuda.contexts() if ordinal not in known]
        with graph_captures.Relaxed():
            if new and not graph_captures.under_way(new):
                self._devices += [DeviceMarks(i, began) for i in new]

    def start(self) -> None:
        """Begin, in no line."""
        self._began = perf_counter()

    def switch(self, lines: tuple[CodeLine, ...]) -> None:
        """End the lines that ran until now, and begin others."""
        ended = perf_counter()
        passed = ended - self._began - self.tracing
        for line in self._lines:
            line.figures.host += max(passed, 0.0)
        if passed > _NO_LAUNCH:
            self._mark(ended)
        self._lines = lines
        self.boundaries += 1
        self._began = began = perf_counter()
        self.own += began - ended

    def stop(self) -> None:
        """Record the last mark; waits for nothing."""
        self.switch(())

    def finish(self) -> None:
        """Read the marks when the GPU has finished.

        Raises:
            RuntimeError: a device has failed.
        """
        with graph_captures.Relaxed():
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
        recorded = perf_counter()
        mark = [(device, device.record()) for device in self._devices]
        if not mark or not all(events for _, events in mark):
            return
        if self._lines and self._lines[0].hits <= _LOOKS:
            for device, events in mark:  # last: it takes time, in which the GPU may be idle
                events += device.look()
        times = (self._began, ended, mark, recorded, perf_counter())
        self._waiting.append(_Boundary(self._lines, *times))
        if len(self._waiting) >= self._read_at:
            with graph_captures.Relaxed():
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
    busy: dict[int | None, Busy] = {i: _busy(*each, began, queued) for i, each in done.items()}
    before, after = map(max, zip(*done.values(), strict=True))
    busy[None] = _busy(before, after, began, queued)
    waited, late = before - began, ended - before
    # A `for` line waits for its next value, which may take as long as the GPU.
    could_wait = min(waited, ended - began) > _LEAST and not (lines and lines[0].loop)
    has_waited = -_LATE_PART * waited < late < min(_LATE + _LATE_PART * waited, 2 * waited)
    for line in lines:
        spent: TimeSpent = line.figures
        for ordinal, more in busy.items():
            spent.busy[ordinal] = spent.busy.get(ordinal, Busy()).plus(more)
        if could_wait:
            spent.could_wait += 1
            if has_waited:
                spent.waits.append(waited)


def _busy(before: float, after: float, began: float, queued: float) -> Busy:
    """Return the GPU's time between two marks.

    Args:
        before: When the work before the first mark was done.
        after: When the work before the second mark was done.
        began: When the host began the line.
        queued: When the second mark had been recorded: the GPU had no gap from then on.
    """
    start = max(before, began)  # what the line launched did not begin before it
    gpu = max(after - start, 0.0)
    return Busy(gpu, gpu - max(min(after, queued) - start, 0.0))


def surely_worked(lines: Iterable[CodeLine]) -> dict[int | None, float]:
    """Return for how long each GPU surely worked in the cell's lines: more than marks take.

    In seconds, by CUDA ordinal if there are any; and under None, for how long some GPU did.
    """
    sure: dict[int | None, float] = {None: 0.0}
    for line in lines:
        for ordinal, busy in line.figures.busy.items():
            seconds = busy.certain - _CLOCKS * busy.most - _MARKS * line.hits
            if seconds > 0.0:
                sure[ordinal] = sure.get(ordinal, 0.0) + seconds
    return sure
