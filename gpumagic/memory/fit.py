"""The largest value with which code fits into memory, found in few runs; nothing but arithmetic.

The value is doubled until the peaks of two runs lie on a line; the line says where memory ends, and
a run there confirms it. Where it was too much, the next values are a little smaller; what is left
between the largest value that ran and the smallest that did not is halved.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpumagic.results.allocator import FitRun

#: Runs at most.
RUNS = 16
#: Far above the largest value that ran, the next one is smaller by this part of what failed.
_STEPS_DOWN = (256, 32, 4)


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

    def add(self, value: int, peak: int | None) -> None:
        """Take in a run: its peak above the start, or None if memory ran out."""
        self.runs.append(FitRun(value, peak))

    def next(self) -> int | None:
        """Return the value to run next; None when the search is over."""
        best, failed = self.largest, self._failed
        if not self.runs:
            return self.low
        if best is None or self.is_exact or len(self.runs) >= RUNS:
            return None
        predicted = self._predicted()
        if failed is None:
            wanted = 2 * max(best, 1) if predicted is None else max(predicted, best + 1)
            return min(wanted, self.high)
        failures = sum(not run.fits for run in self.runs)
        if predicted is not None and failures <= len(_STEPS_DOWN) and 2 * best < failed:
            return max(failed - max(failed // _STEPS_DOWN[failures - 1], 1), best + 1)
        return (best + failed) // 2

    def _predicted(self) -> int | None:
        """Return the largest value that the line through the last two peaks allows, or None."""
        ran = sorted((run.value, run.peak) for run in self.runs if run.peak is not None)
        if self.available is None or len(ran) < 2:
            return None
        (x1, y1), (x2, y2) = ran[-2:]
        if y2 <= y1:
            return None
        return int(x2 + (self.available - y2) * (x2 - x1) / (y2 - y1))
