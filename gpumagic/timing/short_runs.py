"""Runs of short lines, counted one after the other without anything else between them.

A boundary between two lines takes several microseconds. Once lines have run often and are short, it
is left out, but for those runs that are marked: then only the host's clock is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from time import perf_counter
from typing import Protocol

#: Seconds that a run may take at most.
LONG = 300e-6


class ShortLine(Protocol):
    """The sums of a line that is short."""

    hits: int
    #: The number of hits from which a run is marked.
    marked_at: int
    #: The runs that were counted here, and their host time.
    short_runs: int
    short_host: float


class ShortRuns:
    """Counts the runs of ``lines``, by number, from a moment in the line ``number`` on."""

    __slots__ = ("_lines", "_log", "current", "left", "number", "runs", "spent", "waits")

    def __init__(self, lines: Mapping[int, ShortLine], number: int, log: Sized) -> None:
        self._lines = lines
        self._log = log
        #: How many synchronisations there were before.
        self.waits = len(log)
        #: The line that runs.
        self.number = number
        self.current = lines[number]
        #: The runs that have ended, and the seconds that counting them took.
        self.runs = 0
        self.spent = 0.0
        #: When the current run began.
        self.left = perf_counter()

    def go_to(self, number: int) -> bool:
        """End the current run and begin one of a line, or return False and do nothing.

        That is where the line is not short, its next run is to be marked, or the run that ends was
        long or waited for the GPU.
        """
        if number == self.number:
            return True
        now = perf_counter()
        line = self._lines.get(number)
        passed = now - self.left
        if line is None or passed > LONG or len(self._log) != self.waits:
            return False
        if line.hits + 1 >= line.marked_at:
            return False
        current = self.current
        current.short_runs += 1
        current.short_host += passed
        line.hits += 1
        self.number, self.current = number, line
        self.runs += 1
        self.left = left = perf_counter()
        self.spent += left - now
        return True
