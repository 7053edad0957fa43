"""The largest value with which code fits into memory, found in few runs; nothing but arithmetic.

Peaks of a few small values are laid on a line, which says where memory ends; one or two runs there
confirm it. What the line does not tell (an algorithm that changes with the size, rounding) is
narrowed down between the largest value that ran and the smallest that did not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpumagic.results.fit import FitRun

#: Runs at most.
RUNS = 12
#: Values beside each other at the beginning: two for the line, a third to see whether it is one.
_FIRST = 3
#: Where memory ran out at the predicted value, the next ones are smaller by these parts of it.
_STEPS_DOWN = (64, 16)


@dataclass
class FitSearch:
    """Chooses the next value to run, from what the runs so far have shown.

    ``available``: the bytes that the code may allocate above its start; None where not known.
    """

    low: int
    high: int
    available: int | None = None
    runs: list[FitRun] = field(default_factory=list)

    @property
    def largest(self) -> int | None:
        """The largest value that ran; None where none has."""
        ran = [run.value for run in self.runs if run.fits]
        return max(ran) if ran else None

    @property
    def _failed(self) -> int | None:
        failed = [run.value for run in self.runs if not run.fits]
        return min(failed) if failed else None

    @property
    def is_exact(self) -> bool:
        """Whether the next larger value is known not to fit, or is out of range."""
        return self.largest is not None and (
            self.largest == self.high or self._failed == self.largest + 1
        )

    def add(self, value: int, peak: int | None) -> None:
        """Take in a run: its peak above the start, or None if memory ran out."""
        self.runs.append(FitRun(value, peak))

    def next(self) -> int | None:
        """Return the value to run next; None when the search is over."""
        best, failed = self.largest, self._failed
        if len(self.runs) >= RUNS or self.is_exact or failed == self.low:
            return None
        if best is None:
            return self.low
        upper = self.high if failed is None else failed - 1
        return min(max(self._wanted(best, failed), best + 1), upper)

    def _wanted(self, best: int, failed: int | None) -> int:
        predicted = self._predicted()
        if failed is None:
            if len(self.runs) < _FIRST or predicted is None:
                # The peaks of neighbours differ by rounding alone: values twice as large.
                return best * 2
            if predicted >= best:  # at best itself: it is confirmed by the failure of the next
                return predicted
            return best * 4  # more memory is available than was predicted
        if predicted is not None and best <= predicted < failed:
            return predicted
        failures = sum(not run.fits for run in self.runs)
        if failures <= len(_STEPS_DOWN) and len(self.runs) <= _FIRST + failures:
            return failed - max(
                failed // _STEPS_DOWN[failures - 1], 1
            )  # not far, if the line holds
        if failed > 2 * best:
            return math.isqrt(best * failed)
        return (best + failed) // 2

    def _predicted(self) -> int | None:
        """Return the largest value that the line allows; None without one."""
        line = fitted(self.runs)
        if line is None or self.available is None or line[1] <= 0:
            return None
        intercept, slope = line
        return min(math.floor((self.available - intercept) / slope), self.high)


def fitted(runs: Sequence[FitRun]) -> tuple[float, float] | None:
    """Return the line through the peaks, bytes at 0 and bytes per unit; None without two.

    Through the largest value that ran and the largest of at most half of it: small ones are ruled
    by rounding and workspaces, and neighbours differ by rounding alone.
    """
    ran = sorted({run.value: run.peak for run in runs if run.peak is not None}.items())
    if len(ran) < 2:
        return None
    x1, y1 = ran[-1]
    x0, y0 = next((run for run in reversed(ran) if 2 * run[0] <= x1), ran[0])
    slope = (y1 - y0) / (x1 - x0)
    return y0 - slope * x0, slope
