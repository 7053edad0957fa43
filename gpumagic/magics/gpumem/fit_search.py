"""Which value to run next, to find the largest one with which a cell fits into memory.

It is found in few runs. The peaks of the two largest values that ran lie on a line, which says
where memory ends; from there the value grows, or shrinks, until one has run and another, hardly
larger, has not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gpumagic.magics.gpumem.fit_result import FitRun

#: Runs at most.
RUNS = 12
#: The search ends where the smallest value that failed is at most this part above the largest that
#: ran; below `_SMALL`, where it is the next number.
PRECISION, _SMALL = 0.02, 64
#: The next value is at most so many times the largest; so many times where nothing is predicted;
#: and so many times where more fits than was predicted.
_FARTHEST, _UNKNOWN, _MORE = 32, 8, 1.1
#: How far to go from the largest value that ran to one that did not, which was predicted to fit.
_BETWEEN = 0.75


@dataclass
class FitSearch:
    """Chooses the next value to run, from what the runs so far have shown."""

    low: int
    high: int
    #: The bytes that the code may allocate above its start; None where not known.
    available: int | None = None
    runs: list[FitRun] = field(default_factory=list)

    @property
    def largest(self) -> int | None:
        """The largest value that ran; None where none has."""
        return max((run.value for run in self.runs if run.fits), default=None)

    @property
    def _failed(self) -> int | None:
        return min((run.value for run in self.runs if not run.fits), default=None)

    @property
    def is_exact(self) -> bool:
        """Whether the next larger value is known not to fit, or is out of range."""
        best = self.largest
        return best is not None and (best == self.high or self._failed == best + 1)

    def next(self) -> int | None:
        """Return the value to run next; None when the search is over."""
        best, failed, guess = self.largest, self._failed, self._predicted()
        if not self.runs:
            return self.low
        if best is None or best == self.high or len(self.runs) >= RUNS:
            return None
        # If that one fails, or the largest below runs, all is known.
        finer = 1 + PRECISION if best >= _SMALL else 1
        least = min(int(best * finer) + 1, self.high)
        if failed is None:
            most = min(self.high, _FARTHEST * max(best, 1))
            if guess is None:
                guess = _UNKNOWN * max(best, 1)
            elif guess < best:
                guess = int(_MORE * best)
        elif failed <= least:
            return None
        else:
            most = int((failed - 1) / finer)
            if guess is None or len(self.runs) % 2:
                guess = math.isqrt(best * failed)
            elif guess >= failed:
                guess = int(best + _BETWEEN * (failed - best))
        return max(min(guess, most), least)

    def _predicted(self) -> int | None:
        """Return the largest value that a line through the last two peaks allows, or None."""
        ran = sorted((run.value, run.peak) for run in self.runs if run.peak is not None)
        if self.available is None or len(ran) < 2:
            return None
        (x1, y1), (x2, y2) = ran[-2:]
        return None if y2 <= y1 else int(x2 + (self.available - y2) * (x2 - x1) / (y2 - y1))
