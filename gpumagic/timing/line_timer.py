"""GPU and host time of each line: marks where one line ends and the next begins.

The time of a line is that between two marks: from the end of all GPU work queued before the line to
the end of all work queued by its end. The times of successive lines add up to the time of the cell,
and nothing is counted twice: of each source, one line has the time, that of the call which
`CurrentCalls` names. Of short lines that run often, some passes are marked: where lines ran without
a mark between them, the time is divided at the end as their marked runs have it (`line_totals`).

Where the GPU had reached the last mark before the next one was recorded, it may have been idle in
between: for as long as the host took at most. A time with much of that is an upper bound.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from random import Random
from time import perf_counter
from typing import Any, TypeVar

from gpumagic.cells import line_events, line_tracer
from gpumagic.cells.line_tracer import Line
from gpumagic.cells.pauses import Left
from gpumagic.system import text
from gpumagic.timing import (
    current_calls,
    line_passes,
    line_totals,
    passed_time,
    short_runs,
    stream_marks,
    waits_by_time,
)
from gpumagic.timing.current_calls import CurrentCalls
from gpumagic.timing.line_passes import Passes
from gpumagic.timing.line_totals import Boundary, LineTime, Segment, Total
from gpumagic.timing.passed_time import PassedTime, count_as_unknown
from gpumagic.timing.short_runs import ShortRuns
from gpumagic.timing.stream_marks import Mark, StreamMarks
from gpumagic.timing.synchronizations import SynchronizationWatch

_T = TypeVar("_T")

#: All runs of a line are marked up to this number; and those of lines that take `LONG`, always.
_ALL_MARKED = 256
#: Where only every so many-th run is marked, the others are counted without boundaries.
_SHORT = 8
#: So many short runs of a line show what tracing takes.
_MANY = 32
#: So many marks wait to be read, before some are read at each boundary.
_WAITING = 256
#: Seconds in which nothing can be launched: torch takes 3 µs at least, the driver more than 1 µs.
_NO_LAUNCH = 1e-6


class _Call:
    """A call of traced code, and the run of a line in it."""

    __slots__ = (
        "begin", "is_from_above", "is_marked", "is_new", "is_over", "passes", "ran", "source",
        "total",
    )  # fmt: skip

    #: The running line, and where it began to have the time.
    total: Total
    begin: Boundary

    def __init__(self) -> None:
        self.source = 0
        #: Whether it is at the line at which it began, or that line has just ended: where another
        #: one follows, nothing has run on it, and it is no run.
        self.is_new = True
        self.is_over = False
        self.is_marked = False
        #: The line that runs, and whether it follows a line above it.
        self.passes = Passes()
        self.is_from_above = True
        #: The lines that have run in this pass of the statement, and whether they are marked.
        self.ran: dict[Line, bool] = {}


class LineTimer:
    """Measures the lines that a `LineTracer` traces. Raises nothing because of a device.

    ``prepare``, ``start``, the lines, ``stop``, ``close``, and ``finish`` after waiting for the
    devices.
    """

    def __init__(self, tracing: float = 0.0, all_marked: int = _ALL_MARKED) -> None:
        self._marks = StreamMarks()
        # What runs in the cell's calls, which torch may have compiled.
        modules = (
            *(current_calls, line_events, line_passes, line_totals, line_tracer, passed_time),
            *(short_runs, stream_marks, waits_by_time, sys.modules[__name__]),
        )
        self._watch = SynchronizationWatch(modules)
        self._passed = PassedTime()
        #: Seconds that tracing takes at each boundary, beside what the boundary knows of itself.
        self.tracing = tracing
        #: And at the end of a run of a short line that is counted without a boundary.
        self.short_tracing = 0.0
        #: Such runs, and their host time with that.
        self.short_runs = 0
        self.short_host = 0.0
        self._all_marked = all_marked
        self._totals: dict[Line, Total] = {}
        #: Those of short lines, by source and number.
        self._short: dict[int, dict[int, Total]] = {}
        #: By source, the calls that run or wait.
        self._calls = defaultdict[int, CurrentCalls[_Call]](CurrentCalls)
        #: Marks that are not read yet, each with the boundaries since the last one, whether the GPU
        #: may have been idle since, and whether that was the last boundary before. None: the last
        #: one again, where nothing can have been launched since.
        self._waiting: deque[tuple[Mark | None, list[Boundary], bool, bool]] = deque()
        #: The last boundary with a mark of its own, and the seconds of the last mark that was read.
        self._marked: Boundary | None = None
        self._seconds: tuple[float, ...] = ()
        self._unmarked: list[Boundary] = []
        self._has_gap = True
        self._boundary = Boundary(0.0, 0, [])
        #: What runs between the lines.
        self._outside = Total(all_marked)
        self._random = Random(0)
        #: Seconds that the boundaries took themselves, and tracing with them.
        self.own = 0.0
        #: Why GPU times are missing.
        self.note: str | None = None

    def prepare(self) -> None:
        """Do what takes time."""
        self._watch.start()
        self._guarded(self._marks.start)

    def start(self) -> None:
        """Record the first mark, on devices that are idle."""
        self._guarded(self._marks.begin)
        self._boundary = self._new_boundary(None)
        self._record()
        self._leave()

    def stop(self) -> None:
        """Record the last mark."""
        self.read(None)
        for calls in self._calls.values():
            waiting = calls.waiting()
            if waiting is not None:
                self._add(waiting)
        self._record()
        self._leave()

    def close(self, error: BaseException | None) -> None:
        """Put torch's functions back; ``error`` is what the cell raised."""
        self._marks.stop()
        self._watch.stop()
        self._watch.hide(error)

    def finish(self) -> None:
        """Read the marks."""
        self._read_marks(len(self._waiting))
        for _, boundaries, *_ in self._waiting:
            self._unmarked = boundaries + self._unmarked
        self._forget()
        self._waiting.clear()
        self._passed.share([*self._totals.values()])

    def release(self) -> None:
        """Free the events: see `timing.run.Stopwatch.release`."""
        self._waiting.clear()
        self._marks.release()

    def times(self) -> dict[Line, LineTime]:
        """Return the times of the lines that ran."""
        ordinals, whole = self._marks.ordinals, self._passed.whole
        lines = {total: line for line, total in self._totals.items()}
        return {
            line: total.result(ordinals, whole)._replace(
                unnamed=self._passed.waits.of(total, lines)
            )
            for line, total in self._totals.items()
            if total.hits
        }

    # --- what the tracer calls ---------------------------------------------------------------

    def new_record(self) -> _Call:
        """Return the record of a call that begins."""
        return _Call()

    def read(self, running: _Call | None) -> None:
        """Read the clock, and record a mark if the running line's run is to be marked."""
        self._watch.update()
        self._boundary = self._new_boundary(None if running is None else running.total)
        if running is not None and running.is_marked and not self._repeat_mark():
            self._record()

    def begin_statement(self, call: _Call) -> None:
        """Begin a pass of a statement, which is one run of each of its lines."""
        call.ran.clear()

    def begin_line(self, call: _Call, line: Line, *, again: bool) -> None:
        """Begin a run of a line, or go on with it; it has the time of its source from now on."""
        if call.is_over:
            call.is_over = False
            call.total.hits -= 1
            call.ran.clear()
        if line.number != call.passes.number:
            call.is_from_above = line.number > call.passes.number
        total = self._totals.get(line)
        if total is None:
            total = self._totals[line] = Total(self._all_marked)
        if line not in call.ran:
            total.hits += not again
            go_to = call.passes.go_on if again else call.passes.go_to
            call.ran[line] = go_to(line.number, total, self._random)
        calls = self._calls[line.source]
        if not calls.is_running(call):
            if calls.current is not None:
                self._add(calls.current)
            calls.enter(call)
            call.source = line.source
        call.is_marked = call.ran[line]
        call.begin, call.total = self._boundary, total
        if call.is_marked and self._unmarked:
            self._record()
        self._leave()

    def short_run(self, call: _Call, line: Line) -> ShortRuns | None:
        """Return what counts the runs of short lines from the line that has begun on, or None."""
        total = call.total
        if call.is_marked or total.interval < _SHORT:
            return None
        lines = self._short.setdefault(line.source, {})
        lines[line.number] = total
        for each in lines.values():
            each.marked_at = 0
            if each.interval >= _SHORT:
                each.marked_at = each.next_marked if each.begins_pass else sys.maxsize
        runs = ShortRuns(lines, line.number, self._watch.log)
        self._leave()
        runs.last = self._boundary.left
        return runs

    def end_short_runs(self, call: _Call, runs: ShortRuns, source: int) -> None:
        """Put a boundary where the last of the short runs has begun."""
        if not runs.runs:
            return
        tracing = self._short_tracing_in(self._short[source].values())
        self.own += runs.spent + runs.runs * tracing
        others = [
            calls.current.total
            for of, calls in self._calls.items()
            if calls.current is not None and of != source
        ]
        segments = []
        for total in self._short[source].values():
            count, host = total.short_runs, total.short_host
            if count:
                segments.append(Segment(total, count, [total, *others]))
                total.host += host - count * tracing
                total.short_runs, total.short_host = 0, 0.0
                self.short_runs += count
                self.short_host += host
        boundary = Boundary(runs.last, runs.waits, segments)
        boundary.own = self.own
        self._unmarked.append(boundary)
        self._boundary = call.begin = boundary
        line = Line(source, runs.number)
        call.total = self._totals[line]
        call.ran = {line: False}
        call.passes.number, call.is_from_above = runs.number, False

    def _short_tracing_in(self, lines: Iterable[Total]) -> float:
        """Return the seconds that tracing took at the end of each of these short runs.

        They lie in a loop, and its head takes next to no time itself. On a busy machine tracing
        takes longer than when it was measured; not more than twice as long, as far as is known.
        """
        means = [line.short_host / line.short_runs for line in lines if line.short_runs >= _MANY]
        return max(self.short_tracing, min([2 * self.short_tracing, *means] if means else [0.0]))

    def end_line(self, call: _Call, line: Line, *, recursive: bool) -> None:
        """End the run of a line."""
        if call.is_new:
            call.is_new, call.is_over = False, True
        else:
            self._add(call)

    def end_call(self, call: _Call, caller: _Call | None, how: Left) -> None:
        """End or pause a call; another one has the time of its source from now on."""
        if call.is_over:  # all of it is one line
            call.is_over = False
            self._add(call)
        calls = self._calls[call.source]
        calls.leave(call, awaits=how is Left.AWAITS)
        current = calls.current
        if current is not None:
            current.begin = self._boundary
            if current.is_marked and self._unmarked:
                self._record()
        self._leave()

    # --- boundaries and marks ----------------------------------------------------------------

    def _new_boundary(self, running: Total | None) -> Boundary:
        entered = perf_counter()
        owners = []
        for calls in self._calls.values():  # no comprehension, which is a call before Python 3.12
            if calls.current is not None:
                owners.append(calls.current.total)
        segment = Segment(self._outside if running is None else running, 1, owners)
        boundary = Boundary(entered, len(self._watch.log), [segment])
        boundary.own = self.own
        self.own += self.tracing
        self._unmarked.append(boundary)
        return boundary

    def _leave(self) -> None:
        boundary = self._boundary
        left = boundary.left = perf_counter()
        taken = left - boundary.entered
        boundary.own = self.own = self.own + taken - boundary.taken
        boundary.taken = taken

    def _add(self, call: _Call) -> None:
        """Add the time until the last boundary to the line that has it."""
        total, begin, end = call.total, call.begin, self._boundary
        host = end.entered - begin.left - (end.own - begin.own) - self.tracing
        total.host += host
        if call.is_from_above:
            total.from_above += host
        if begin.synchronized != end.synchronized:
            total.synchronizations += self._watch.log[begin.synchronized : end.synchronized]

    def _record(self) -> None:
        """Record a mark at the last boundary."""
        try:
            recorded = self._marks.record() if self.note is None else None
        except RuntimeError as error:
            recorded = None
            self._give_up(error)
        if recorded is None:
            if self.note is not None or not self._marks.ordinals:
                self._forget()
            return
        mark, idle, begun = recorded
        self._boundary.recorded = begun, perf_counter()
        self._waiting.append((mark, self._unmarked, idle, not self._has_gap))
        self._unmarked, self._has_gap, self._marked = [], False, self._boundary
        if len(self._waiting) > _WAITING:
            self._read_marks(2)

    def _repeat_mark(self) -> bool:
        """Take the last mark as that of this boundary, if nothing can have been launched since.

        That is so at the head of a loop, mostly; a mark takes longer than all else of a boundary.
        Never twice in a row: another thread may launch meanwhile.
        """
        marked, boundary, self._marked = self._marked, self._boundary, None
        if marked is None or len(self._unmarked) != 1:
            return False
        if boundary.entered - marked.left - self.tracing > _NO_LAUNCH:
            return False
        boundary.recorded = marked.recorded
        self._waiting.append((None, self._unmarked, False, True))
        self._unmarked = []
        return True

    def _forget(self) -> None:
        """Count the runs since the last mark as unknown."""
        count_as_unknown(self._unmarked)
        self._unmarked, self._has_gap, self._marked = [], True, None

    def _guarded(self, step: Callable[..., _T], *arguments: Any) -> _T | None:
        try:
            return step(*arguments)
        except RuntimeError as error:
            self._give_up(error)
            return None

    def _give_up(self, error: RuntimeError) -> None:
        self.note = f"no GPU time of lines: the GPU cannot be asked ({text.reason(error)})"

    def _read_marks(self, most: int) -> None:
        """Read marks that are reached, in their order."""
        for _ in range(most):
            mark, boundaries, idle, is_next = self._waiting[0]
            if mark is not None:
                if self.note is not None or not self._guarded(self._marks.is_reached, mark):
                    return
                seconds = self._guarded(self._marks.read, mark)
                if seconds is None:
                    return
                self._seconds = seconds
            self._waiting.popleft()
            self._passed.add(
                *(self._seconds, boundaries, self._watch.log),
                tracing=self.tracing, idle=idle, is_next=is_next,
            )  # fmt: skip
