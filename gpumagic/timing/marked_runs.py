"""Runs of lines in one call, written down one after the other, with a mark between each two.

A boundary between two lines takes a processor that has just run something else about 25 µs, and
half of that where nothing but the clock is read and a mark recorded. So the sums of many runs are
made at once, when the cell has ended or something else is to be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from time import perf_counter
from typing import TypeAlias

from gpumagic.timing.line_marks import NO_LAUNCH, LineMarks, NewMark
from gpumagic.timing.line_passes import Passes
from gpumagic.timing.line_totals import Boundary, Segment, Total
from gpumagic.timing.short_runs import LONG

#: The credit from which runs are written down: it grows with each long run, and each short one
#: takes of it, so that about a fifth of the runs are long at least.
ENOUGH = 8
LONG_RUN, SHORT_RUN, MOST_CREDIT = 4, -1, 16
#: The credit where hardly any run was written down before something else came.
NO_CREDIT, _FEW = -16, 4
#: So many runs wait for their sums at most.
_MOST = 1024

#: The end of a run, and the beginning of the next one: the number of its line, when the run ended,
#: how many synchronisations there were, the mark, whether it is the last one again, when it was
#: recorded, and when the next run began. No class: a tuple is made in half the time.
_Reading: TypeAlias = tuple[int, float, int, NewMark | None, bool, float, float]


class Shared:
    """What all runs of a cell share."""

    def __init__(
        self, marks: LineMarks, log: Sequence[tuple[str, float]], update: Callable[[], None]
    ) -> None:
        self.marks = marks
        #: The synchronisations of the cell.
        self.log = log
        #: What is to be done at each boundary.
        self.update = update
        #: Chooses runs to be marked.
        self.random = Random(0)
        #: Seconds that tracing takes at the end of a run, beside what is known of it.
        self.tracing = 0.0
        #: Seconds from which a run is long.
        self.long = LONG


class MarkedRuns:
    """Writes down the runs of a call, from the beginning of a run on.

    Args:
        shared: What all runs of the cell share.
        number: The line that runs.
        begin: Where its run began.
        is_from_above: Whether a line above it led to it.
        passes: Those that the call is in.
        others: The lines of other sources that run meanwhile.
        total: Returns the sums of a line by its number.
    """

    __slots__ = (
        "_begin", "_from_above", "_may_repeat", "_others", "_passes", "_readings",
        "_shared", "_summed", "_total", "credit", "left", "number", "runs",
    )  # fmt: skip

    def __init__(
        self,
        shared: Shared,
        number: int,
        begin: Boundary,
        *,
        is_from_above: bool,
        passes: Passes,
        others: Sequence[Total],
        total: Callable[[int], Total],
    ) -> None:
        #: The line that runs, and how many runs have ended.
        self.number = number
        self.runs = 0
        #: See `ENOUGH`.
        self.credit = ENOUGH
        #: The first line whose sums are to be made, and where its run began.
        self._summed, self._begin, self._from_above = number, begin, is_from_above
        self._shared, self._passes, self._others, self._total = shared, passes, others, total
        #: When the current run began.
        self.left = begin.left
        self._may_repeat = False
        self._readings: list[_Reading] = []

    def go_to(self, number: int) -> bool:
        """End the current run and begin one of a line, or return False and do nothing.

        That is where too many runs are short, or no mark can be recorded now.
        """
        if number == self.number:
            return True
        entered = perf_counter()
        shared, passed = self._shared, entered - self.left
        if passed >= shared.long:
            if self.credit < MOST_CREDIT:
                self.credit += LONG_RUN
        else:
            self.credit += SHORT_RUN
            if self.credit < 0:
                return False
        shared.update()
        mark = None
        # As at the head of a loop: see `LineMarks.record_or_repeat`.
        repeats = self._may_repeat and passed - shared.tracing <= NO_LAUNCH
        if not repeats:
            mark = shared.marks.new()
            if mark is None and not shared.marks.are_none:
                return False
        self._may_repeat = mark is not None
        ended = left = perf_counter()
        if len(self._readings) >= _MOST:
            self.sum_up()
            shared.marks.read_most()
            left = perf_counter()
        reading = (number, entered, len(shared.log), mark, repeats, ended, left)
        self._readings.append(reading)
        self.number, self.left = number, left
        self.runs += 1
        return True

    @property
    def next_credit(self) -> int:
        """The credit of the call after these runs."""
        return self.credit if self.runs >= _FEW else NO_CREDIT

    def end(self) -> tuple[Boundary, bool, bool]:
        """Return the beginning of the current run, whether it is marked, and is from above."""
        number, entered, synchronized, mark, repeats, _, left = self._readings[-1]
        before = self._readings[-2][0] if len(self._readings) > 1 else self._summed
        boundary = Boundary(entered, synchronized, [])
        taken = sum(left - entered for _, entered, *_, left in self._readings)
        boundary.own = self._begin.own + taken + len(self._readings) * self._shared.tracing
        boundary.left, boundary.taken = left, left - entered
        return boundary, mark is not None or repeats, number > before

    def sum_up(self) -> None:
        """Add the runs to the sums of their lines, and put their marks."""
        shared, others, total = self._shared, self._others, self._total(self._summed)
        for number, entered, synchronized, mark, repeats, ended, left in self._readings:
            boundary = Boundary(
                entered, synchronized, [Segment(total, 1, [total, *others])], shared.tracing
            )
            boundary.own = self._begin.own
            shared.marks.unmarked.append(boundary)
            if repeats:
                shared.marks.repeat(boundary)
            else:
                shared.marks.put(boundary, mark, ended)
            total.add_run(self._begin, boundary, shared.log, is_from_above=self._from_above)
            self._from_above = number > self._summed
            self._summed, total = number, self._total(number)
            total.hits += 1
            self._passes.go_to(number, total, shared.random)
            boundary.leave(left)
            boundary.own += shared.tracing
            self._begin = boundary
        self._readings.clear()
