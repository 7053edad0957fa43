"""Which passes of a loop are marked: all lines of a pass, or none.

A pass begins where a call begins, and at a line to which a loop returns. One of every so many is
chosen at random, so that a loop in which each k-th pass differs is sampled as it is.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Protocol


class PassLine(Protocol):
    """The sums of a line, and the passes that begin at it."""

    #: Whether passes begin at it, and the last line that is known to be in them.
    begins_pass: bool
    last: float
    #: The number of hits from which the next pass is marked.
    next_marked: int
    hits: int
    #: The line at which the passes begin in which it runs.
    sampled_by: PassLine | None

    @property
    def interval(self) -> int:
        """Of how many runs one is marked now."""
        ...


class Passes:
    """The passes that a call is in, the innermost last."""

    __slots__ = ("_loops", "number")

    def __init__(self) -> None:
        #: By the number of the line at which each began, and whether it is marked.
        self._loops: list[tuple[int, PassLine, bool]] = []
        #: The current line.
        self.number = 0

    def go_to(self, number: int, line: PassLine, random: Random) -> bool:
        """Begin a run of a line; return whether it is to be marked."""
        loops, before, self.number = self._loops, self.number, number
        interval = line.interval
        if not loops:
            line.begins_pass, line.last = True, inf
        elif number < before:
            line.begins_pass = True
            line.last = max(line.last, before)
        while loops and not loops[-1][0] < number <= loops[-1][1].last:
            first, inner, _ = loops.pop()
            if number < first <= line.last:  # a loop within that which begins again
                line.last = max(line.last, inner.last)
        if line.begins_pass:
            is_marked = interval == 1 or line.hits >= line.next_marked
            if is_marked and interval > 1:
                block = line.hits // interval + 1
                line.next_marked = block * interval + random.randrange(interval)
            loops.append((number, line, is_marked))
        return self.go_on(number, line, random)

    def go_on(self, number: int, line: PassLine, random: Random) -> bool:
        """Go on with a run of a line; return whether it is to be marked."""
        if line.interval == 1 or not self._loops:
            return True
        _, line.sampled_by, is_marked = self._loops[-1]
        return is_marked
