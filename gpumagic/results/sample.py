"""The times of one quantity: one value a repeat."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

#: The shortest and the longest time that a clock gives, in seconds, with much to spare.
SHORTEST, LONGEST = 1e-18, 1e15


@dataclass(frozen=True)
class Sample:
    """The times of one quantity in seconds: one value a repeat, the mean over its loops.

    Raises:
        ValueError: there is no value.
    """

    all: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.all:
            raise ValueError("a Sample needs at least one value")

    @property
    def median(self) -> float:
        return statistics.median(self.all)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.all)

    @property
    def stdev(self) -> float:
        """Population standard deviation, as IPython's ``TimeitResult`` computes it."""
        mean = self.mean
        return math.sqrt(statistics.fmean((x - mean) ** 2 for x in self.all))

    @property
    def best(self) -> float:
        return min(self.all)

    @property
    def worst(self) -> float:
        return max(self.all)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile, interpolated linearly."""
        if len(self.all) == 1:  # refused by Python before 3.13
            return self.all[0], self.all[0]
        first, _, third = statistics.quantiles(self.all, n=4, method="inclusive")
        return first, third

    @property
    def iqr(self) -> float:
        """Interquartile range."""
        first, third = self.quartiles
        return third - first

    def __repr__(self) -> str:
        return f"<Sample: median {self.median:.6g} s of {len(self.all)}>"
