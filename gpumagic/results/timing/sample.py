"""The times of one quantity over the repeats, `Sample`; and when a time is an upper bound."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

#: A time is exact, within 5 %, if the GPU has surely worked for this part of it.
EXACT = 0.95


def is_bound(most: float, least: float) -> bool:
    """Return whether a time is an upper bound, shown with ``≤``, by what it is at least."""
    return least < EXACT * most


@dataclass(frozen=True)
class Sample:
    """The times of one quantity: one value a repeat, the mean over its loops.

    Raises:
        ValueError: there is no value, or one that no clock gives.
    """

    all: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.all or not all(0 <= value < 1e15 for value in self.all):
            raise ValueError("a Sample needs at least one value, and none below 0")

    @property
    def median(self) -> float:
        return statistics.median(self.all)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.all)

    @property
    def stdev(self) -> float:
        """Population standard deviation, as IPython's ``TimeitResult`` computes it."""
        return statistics.pstdev(self.all)

    @property
    def best(self) -> float:
        return min(self.all)

    @property
    def worst(self) -> float:
        return max(self.all)

    @property
    def iqr(self) -> float:
        """Interquartile range, its quartiles interpolated linearly."""
        if len(self.all) == 1:  # refused by Python before 3.13
            return 0.0
        first, _, third = statistics.quantiles(self.all, n=4, method="inclusive")
        return third - first

    def __repr__(self) -> str:
        return f"<Sample: median {self.median:.6g} s of {len(self.all)}>"
