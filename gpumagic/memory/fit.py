"""The largest value with which code fits into memory, found in few runs; nothing but arithmetic.

Peaks of a few values are laid on a curve ``a + b * n ** p``, which says where memory ends: batches
have ``p`` = 1, lengths of sequences or sides of matrices 2. One or two runs there confirm it. What
the curve does not show (an algorithm that changes with the size, rounding) is narrowed down between
the largest value that ran and the smallest that did not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumagic.results.fit import FitRun

#: Runs at most.
RUNS = 12
#: Runs for the first curve.
_FIRST = 3
#: At most so many times as large is the next value until then, and it is one that fits if the peak
#: grows with its third power at most.
_LARGEST_STEP, _STEEPEST = 64.0, 3.0
#: No larger value is asked for.
_ENDLESS = 10**19
#: Where memory ran out at the predicted value, the next ones are smaller by these parts of it.
_STEPS_DOWN = (512, 64, 16)
#: From this part of what was thought to be available on, a run is near the end.
_NEAR = 0.99
#: A peak that is so much smaller differs by more than rounding.
_APART = 0.75
#: Bytes that torch's allocator rounds to: a peak may have grown by less.
_ROUNDING = 2 << 20
#: The powers that a curve may have, and how far from 1 it is a line all the same.
_POWERS, _NEARLY = (0.2, 4.0), 0.03


@dataclass
class FitSearch:
    """Chooses the next value to run, from what the runs so far have shown.

    ``available``: the bytes that the code may allocate above its start; None where not known.
    """

    low: int
    high: int
    available: int | None = None
    #: The last run of each value, in the order in which they ran first.
    runs: list[FitRun] = field(default_factory=list)
    #: All runs.
    number: int = 0

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

    @property
    def _first_has_more(self) -> bool:
        """Whether the first run is to be repeated: a larger value needed less.

        It did what is done once, such as an optimizer's first step, which creates its state.
        """
        if self.number != len(self.runs) or self.number >= RUNS:
            return False
        peaks = [run.peak for run in self.runs if run.peak is not None]
        return len(peaks) > 1 and min(peaks) < peaks[0]

    def add(self, value: int, peak: int | None) -> None:
        """Take in a run: its peak above the start, or None if memory ran out."""
        self.number += 1
        if value not in [run.value for run in self.runs]:
            self.runs.append(FitRun(value, peak))
        elif peak is not None:  # else it has run before, with less in use
            self.runs[0] = FitRun(value, peak)

    def next(self) -> int | None:
        """Return the value to run next; None when the search is over."""
        best, failed = self.largest, self._failed
        if self._first_has_more:
            return self.runs[0].value
        if self.number >= RUNS or self.is_exact or failed == self.low:
            return None
        if best is None:
            return self.low
        upper = self.high if failed is None else failed - 1
        return min(max(self._wanted(best, failed), best + 1), upper)

    def _wanted(self, best: int, failed: int | None) -> int:
        predicted = self._predicted()
        if failed is None and (len(self.runs) < _FIRST or predicted is None):
            return self._first(best)
        near = sum(self._is_near_the_end(run) for run in self.runs)
        if failed is None:
            if predicted is not None and predicted > best and near < 2:
                return predicted
            # More is available than was thought, or the curve says too little.
            steps = (best >> 3, 1, 4, max(best >> 5, 5))
            return best + steps[near] if near < len(steps) else 4 * best
        middle = (best + failed) // 2
        tries = RUNS - self.number
        if 2 ** (tries - 1) < failed - best <= 2**tries:  # to halve takes all that are left
            return middle
        if near >= 2 or (predicted is not None and predicted <= best):
            return middle
        if predicted is not None and predicted < failed:
            return predicted
        is_far = failed > 2 * best
        parts = _STEPS_DOWN[1:] if is_far else _STEPS_DOWN
        failures = sum(not run.fits for run in self.runs)
        if failures <= len(parts):
            down = failed - max(failed // parts[failures - 1], 1)
            return down if down > best else middle
        return math.isqrt(best * failed) if is_far else middle

    def _first(self, best: int) -> int:
        """Return a value that is larger, and fits if the peak does not grow steeply."""
        peaks = sorted((run.value, run.peak) for run in self.runs if run.peak is not None)
        if self.available is None or self.available <= peaks[-1][1]:
            return best * 4
        at_least = peaks[0][1] if len(peaks) > 1 else 0
        grown = max(peaks[-1][1] - at_least, _ROUNDING if len(peaks) > 1 else 1)
        factor: float = (max(self.available - at_least, 1) / grown) ** (1 / _STEEPEST)
        return math.ceil(best * min(max(factor, 2.0), _LARGEST_STEP))

    def _is_near_the_end(self, run: FitRun) -> bool:
        """Return whether the run took nearly all that was thought to be available."""
        return run.peak is not None and run.peak >= _NEAR * (self.available or math.inf)

    def _predicted(self) -> int | None:
        """Return the largest value that the curve allows; None without one."""
        if self.available is None:
            return None
        found = [curve.largest(self.available) for curve in _curves(self.runs)]
        known = [value for value in found if value is not None]
        return min(*known, self.high) if known else None


class Curve(NamedTuple):
    """Bytes that a value needs: ``at_zero + factor * value ** power``."""

    at_zero: float
    factor: float
    power: float

    def largest(self, available: int) -> int | None:
        """Return the largest value that needs no more; None if none does."""
        left = (available - self.at_zero) / self.factor
        if left <= 0:
            return None
        exponent = math.log(left) / self.power
        return _ENDLESS if exponent > math.log(_ENDLESS) else math.floor(math.exp(exponent))


class _Parabola(NamedTuple):
    """Bytes that a value needs: ``at_zero + linear * value + square * value ** 2``."""

    at_zero: float
    linear: float
    square: float

    def largest(self, available: int) -> int | None:
        """Return the largest value that needs no more; None if none does."""
        root = self.linear**2 - 4 * self.square * (self.at_zero - available)
        if root < 0:
            return None
        return math.floor((math.sqrt(root) - self.linear) / (2 * self.square))


def fitted(runs: Sequence[FitRun]) -> Curve | None:
    """Return the curve through the peaks: a line for two of them, None for fewer."""
    points = _points(runs)
    if len(points) < 2:
        return None
    power = _power(*points) if len(points) == 3 else 1.0
    (x1, y1), (x2, y2) = points[-2:]
    factor = (y2 - y1) / (float(x2) ** power - float(x1) ** power)
    return Curve(y1 - factor * float(x1) ** power, factor, power)


def _curves(runs: Sequence[FitRun]) -> list[Curve | _Parabola]:
    """Return curves that estimate what larger values need; the larger estimate is the safer one.

    A parabola is one for memory of which parts grow with the value and with its square.
    """
    curve, points = fitted(runs), _points(runs)
    if curve is None or len(points) < 3:
        return [] if curve is None else [curve]
    (x0, y0), (x1, y1), (x2, y2) = points
    first, second = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    square = (second - first) / (x2 - x0)
    if square <= 0:
        return [curve]
    linear = second - square * (x1 + x2)
    return [curve, _Parabola(y2 - linear * x2 - square * x2**2, linear, square)]


def _points(runs: Sequence[FitRun]) -> list[tuple[int, int]]:
    """Return two or three values with their peaks; none where these do not grow.

    The largest value that ran, and below it the largest with much smaller peaks: those of small
    values are ruled by rounding and workspaces, and those of neighbours differ by rounding alone.
    """
    ran = sorted({run.value: run.peak for run in runs if run.peak is not None}.items())
    if len(ran) < 2:
        return []
    last = ran[-1]
    middle = _below(last, ran[:-1]) or ran[0]
    if last[1] <= middle[1]:
        return []
    first = _below(middle, [run for run in ran if run[0] < middle[0]])
    return [middle, last] if first is None else [first, middle, last]


def _below(point: tuple[int, int], ran: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    value, peak = point
    return next(
        (run for run in reversed(ran) if 2 * run[0] <= value or run[1] <= _APART * peak), None
    )


def _power(first: tuple[int, int], middle: tuple[int, int], last: tuple[int, int]) -> float:
    """Return the power of the curve through three points, by halving."""
    (x0, y0), (x1, y1), (x2, y2) = first, middle, last
    low, high = _POWERS
    for _ in range(60):
        power = (low + high) / 2
        below = (float(x1) ** power - float(x0) ** power) * (y2 - y1)
        if below < (float(x2) ** power - float(x1) ** power) * (y1 - y0):
            high = power
        else:
            low = power
    # Rounding aside, most are lines, which the last two points determine best.
    return 1.0 if abs(low - 1) < _NEARLY else low
