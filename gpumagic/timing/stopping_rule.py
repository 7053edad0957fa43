"""When to stop repeating, and the drift and the outliers of the repeats. Pure statistics.

Nothing here assumes a distribution: times have long tails, and the rank-based interval of a median
is valid for any of them. No repeat is ever left out as an outlier; outliers are reported.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

#: Repeats before the first test, and the factor between tests: each test of the same data is
#: another opportunity to stop by chance, so there are few.
FIRST_LOOK = 10
NEXT_LOOK = 1.25
#: Standard errors that a rank sum exceeds by chance once in eighty times.
_UNLIKELY = 2.5
#: The least drift, and the least distance of an outlier, that are reported; parts of the median.
_NOTABLE_DRIFT = 0.02
_NOTABLE_DISTANCE = 0.05
#: The 97.5 % quantile of the normal distribution.
_Z = statistics.NormalDist().inv_cdf(0.975)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the median; None for fewer than 6 values.

    By ranks: the median is between the k-th smallest and the k-th largest value unless fewer than
    k values are on one side of it, and their number is binomial (David and Nagaraja, *Order
    Statistics*, 7.1).
    """
    rank = _rank(len(values))
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


def _rank(count: int) -> int:
    """Return the largest k for which P(fewer than k of ``count`` coins show heads) ≤ 2.5 %."""
    if count > 100:
        return math.floor((count - _Z * math.sqrt(count)) / 2)
    rank, chance = 0, 0.0
    while (chance := chance + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    return rank


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of `median_interval` as a part of the median; None without one."""
    interval = median_interval(values)
    median = statistics.median(values) if values else 0.0
    if interval is None or median <= 0:
        return None
    return (interval[1] - interval[0]) / 2 / median


def next_look(count: int) -> int:
    """Return the number of repeats after which to test again."""
    return max(FIRST_LOOK, math.ceil(count * NEXT_LOOK))


def drift(values: Sequence[float]) -> float | None:
    """Return how much longer the second half took than the first, as a part of it.

    None unless it is 2 % at least, and significant by a rank-sum test.
    """
    middle = len(values) // 2
    first, second = values[:middle], values[middle:]
    if len(first) < 2:
        return None
    before, after = statistics.median(first), statistics.median(second)
    if before <= 0 or abs(change := after / before - 1) < _NOTABLE_DRIFT:
        return None
    return change if abs(_rank_sum(first, second)) >= _UNLIKELY else None


def _rank_sum(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the rank sum of ``first``, in standard errors from its mean if there is no drift."""
    ordered = sorted([*first, *second])
    places: dict[float, list[int]] = {}
    for place, value in enumerate(ordered, 1):
        places.setdefault(value, []).append(place)
    total = math.fsum(statistics.fmean(places[value]) for value in first)
    n, m = len(first), len(second)
    spread = math.sqrt(n * m * (n + m + 1) / 12)
    return (total - n * (n + m + 1) / 2) / spread


def outliers(values: Sequence[float]) -> tuple[float, ...]:
    """Return the values three interquartile ranges beyond the quartiles, and 5 % at least."""
    if len(values) < 4:
        return ()
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    reach = max(3 * (high - low), _NOTABLE_DISTANCE * middle)
    return tuple(value for value in values if value < low - reach or value > high + reach)
