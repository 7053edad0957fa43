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
from collections import defaultdict
from collections.abc import Iterable
from time import perf_counter
from typing import Any

from gpumagic.cells import line_events, line_tracer
from gpumagic.cells.line_tracer import Line, RunCounter
from gpumagic.cells.pauses import Left
from gpumagic.timing import (
    current_calls,
    line_marks,
    line_passes,
    line_totals,
    marked_runs,
    passed_time,
    short_runs,
    stream_marks,
    waits_by_time,
)
from gpumagic.timing.current_calls import CurrentCalls
from gpumagic.timing.line_marks import LineMarks
from gpumagic.timing.line_passes import Passes
from gpumagic.timing.line_totals import Boundary, LineTime, Segment, Total
from gpumagic.timing.marked_runs import (
    ENOUGH,
    LONG_RUN,
    MOST_CREDIT,
    NO_CREDIT,
    SHORT_RUN,
    MarkedRuns,
    Shared,
)
from gpumagic.timing.short_runs import ShortRuns
from gpumagic.timing.synchronizations import SynchronizationWatch

#: All runs of a line are marked up to this number; and those of lines that take `LONG`, always.
_ALL_MARKED = 256
#: Where only every so many-th run is marked, the others are counted without boundaries.
_SHORT = 8
#: So many short runs of a line show what tracing takes.
_MANY = 32


class _Call:
    """A call of traced code, and the run of a line in it."""

    __slots__ = (
        "begin", "credit", "is_from_above", "is_marked", "is_new", "is_over", "passes", "ran",
        "source", "total",
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
        #: See `marked_runs`.
        self.credit = 0
        #: The lines that have run in this pass of the statement, and whether they are marked.
        self.ran: dict[Line, bool] = {}


class LineTimer:
    """Measures the lines that a `LineTracer` traces. Raises nothing because of a device.

    ``prepare``, ``start``, the lines, ``stop``, ``close``, and ``finish`` after waiting for the
    devices.
    """

    def __init__(self, tracing: float = 0.0, all_marked: int = _ALL_MARKED) -> None:
        # What runs in the cell's calls, which torch may have compiled.
        modules = (
            *(current_calls, line_events, line_marks, line_passes, line_totals, line_tracer),
            *(marked_runs, passed_time, short_runs, stream_marks, waits_by_time),
            sys.modules[__name__],
        )
        self._watch = SynchronizationWatch(modules)
        self.marks = LineMarks(self._watch.log)
        #: What is shared by the runs that are written down first.
        self.shared = Shared(self.marks, self._watch.log, self._watch.update)
        #: Such runs, whose sums are made when the next line begins, or at the end.
        self._written: MarkedRuns | None = None
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
        self._boundary = Boundary(0.0, 0, [])
        #: What runs between the lines.
        self._outside = Total(all_marked)
        #: Seconds that the boundaries took themselves, and tracing with them.
        self.own = 0.0

    def prepare(self) -> None:
        """Do what takes time."""
        self._watch.start()
        self.marks.start()

    def start(self) -> None:
        """Record the first mark, on devices that are idle."""
        self.marks.begin()
        self._boundary = self._new_boundary(None)
        self.marks.record(self._boundary)
        self._leave()

    def stop(self) -> None:
        """Record the last mark."""
        self.read(None)
        for calls in self._calls.values():
            waiting = calls.waiting()
            if waiting is not None:
                self._add(waiting)
        self.marks.record(self._boundary)
        self._leave()

    def close(self, error: BaseException | None) -> None:
        """Put torch's functions back; ``error`` is what the cell raised."""
        self.marks.stop()
        self._watch.stop()
        self._watch.hide(error)

    def finish(self) -> None:
        """Make the sums, and read the marks."""
        self._sum_up()
        self.marks.finish()
        self.marks.passed.share([*self._totals.values()])

    def release(self) -> None:
        """Free the events: see `timing.run.Stopwatch.release`."""
        self._written = None
        self.marks.release()

    def times(self) -> dict[Line, LineTime]:
        """Return the times of the lines that ran."""
        passed = self.marks.passed
        lines = {total: line for line, total in self._totals.items()}
        return {
            line: total.result(
                self.marks.ordinals, passed.whole, unnamed=passed.waits.of(total, lines)
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
        if running is not None and running.is_marked:
            self.marks.record_or_repeat(self._boundary)

    def begin_statement(self, call: _Call) -> None:
        """Begin a pass of a statement, which is one run of each of its lines."""
        call.ran.clear()

    def begin_line(self, call: _Call, line: Line, *, again: bool) -> None:
        """Begin a run of a line, or go on with it; it has the time of its source from now on."""
        if self._written is not None:
            self._sum_up()
        if call.is_over:
            call.is_over = False
            call.total.hits -= 1
            call.ran.clear()
        if line.number != call.passes.number:
            call.is_from_above = line.number > call.passes.number
        total = self._totals.get(line) or self._total(line)
        if line not in call.ran:
            total.hits += not again
            go_to = call.passes.go_on if again else call.passes.go_to
            call.ran[line] = go_to(line.number, total, self.shared.random)
        calls = self._calls[line.source]
        if not calls.is_running(call):
            if calls.current is not None:
                self._add(calls.current)
            calls.enter(call)
            call.source = line.source
        call.is_marked = call.ran[line]
        call.begin, call.total = self._boundary, total
        if call.is_marked and self.marks.unmarked:
            self.marks.record(self._boundary)
        self._leave()

    def begin_runs(self, call: _Call, line: Line) -> RunCounter | None:
        """Return what counts the runs from the line that has begun on, or None."""
        runs: MarkedRuns | ShortRuns | None = None
        if not call.is_marked:
            runs = self._short_runs(call, line)
        elif call.credit >= ENOUGH and not self.marks.unmarked:
            runs = self._marked_runs(call, line)
        if runs is not None:
            self._leave()
            runs.left = self._boundary.left
        return runs

    def end_runs(self, call: _Call, runs: Any, source: int) -> None:
        """Put a boundary where the last of the runs has begun."""
        if isinstance(runs, MarkedRuns):
            self._end_marked_runs(call, runs, source)
        elif runs.runs:
            self._end_short_runs(call, runs, source)

    def _marked_runs(self, call: _Call, line: Line) -> MarkedRuns:
        return MarkedRuns(
            self.shared,
            line.number,
            self._boundary,
            is_from_above=call.is_from_above,
            passes=call.passes,
            others=self._others(line.source),
            total=lambda number: self._total(Line(line.source, number)),
        )

    def _end_marked_runs(self, call: _Call, runs: MarkedRuns, source: int) -> None:
        call.credit = runs.next_credit
        if not runs.runs:
            return
        boundary, has_mark, call.is_from_above = runs.end()
        self._written, self._boundary, self.own = runs, boundary, boundary.own
        call.begin = boundary
        line = Line(source, runs.number)
        call.total, call.is_marked, call.ran = self._total(line), True, {line: True}
        self.marks.leave_place(has_mark=has_mark)

    def _sum_up(self) -> None:
        """Make the sums of the runs that are written down."""
        written, self._written = self._written, None
        if written is not None:
            with self.marks.at_place():
                written.sum_up()
            self.marks.read_most()

    def _short_runs(self, call: _Call, line: Line) -> ShortRuns | None:
        total = call.total
        if total.interval < _SHORT:
            return None
        lines = self._short.setdefault(line.source, {})
        lines[line.number] = total
        for each in lines.values():
            each.marked_at = 0
            if each.interval >= _SHORT:
                each.marked_at = each.next_marked if each.begins_pass else sys.maxsize
        return ShortRuns(lines, line.number, self._watch.log)

    def _end_short_runs(self, call: _Call, runs: ShortRuns, source: int) -> None:
        tracing = self._short_tracing_in(self._short[source].values())
        self.own += runs.spent + runs.runs * tracing
        others = self._others(source)
        segments = []
        for total in self._short[source].values():
            count, host = total.short_runs, total.short_host
            if count:
                segments.append(Segment(total, count, [total, *others]))
                total.host += host - count * tracing
                total.short_runs, total.short_host = 0, 0.0
                self.short_runs += count
                self.short_host += host
        boundary = Boundary(runs.left, runs.waits, segments)
        boundary.own = self.own
        self.marks.unmarked.append(boundary)
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
            if self._boundary.entered - call.begin.left >= self.shared.long:
                call.credit = min(call.credit + LONG_RUN, MOST_CREDIT)
            elif call.credit > NO_CREDIT:
                call.credit += SHORT_RUN

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
            if current.is_marked and self.marks.unmarked:
                self.marks.record(self._boundary)
        self._leave()

    # --- boundaries --------------------------------------------------------------------------

    def _total(self, line: Line) -> Total:
        total = self._totals.get(line)
        if total is None:
            total = self._totals[line] = Total(self._all_marked)
        return total

    def _others(self, source: int) -> list[Total]:
        """Return the lines that other sources than this one have the time for."""
        return [
            calls.current.total
            for of, calls in self._calls.items()
            if calls.current is not None and of != source
        ]

    def _new_boundary(self, running: Total | None) -> Boundary:
        entered = perf_counter()
        owners = []
        for calls in self._calls.values():  # no comprehension, which is a call before Python 3.12
            if calls.current is not None:
                owners.append(calls.current.total)
        segment = Segment(self._outside if running is None else running, 1, owners)
        boundary = Boundary(entered, len(self._watch.log), [segment], self.tracing)
        boundary.own = self.own
        self.own += self.tracing
        self.marks.unmarked.append(boundary)
        return boundary

    def _leave(self) -> None:
        boundary = self._boundary
        left = boundary.left = perf_counter()
        taken = left - boundary.entered
        boundary.own = self.own = self.own + taken - boundary.taken
        boundary.taken = taken

    def _add(self, call: _Call) -> None:
        """Add the time until the last boundary to the line that has it."""
        call.total.add_run(
            call.begin, self._boundary, self._watch.log, is_from_above=call.is_from_above
        )
