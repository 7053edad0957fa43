"""How precisely repeats tell the median of a time.

Nothing here assumes a distribution: times have long tails, and the rank-based interval of a median
is valid for any of them. No repeat is ever left out as an outlier.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

#: The fewest repeats with an interval of their median.
LEAST_REPEATS = 6
#: The 97.5 % quantile of the normal distribution.
_Z = statistics.NormalDist().inv_cdf(0.975)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the median; None for fewer than `LEAST_REPEATS`.

    By ranks: the median is between the k-th smallest and the k-th largest value unless fewer than
    k values are on one side of it, and their number is binomial (David and Nagaraja, *Order
    Statistics*, 7.1).
    """
    # Of n tossed coins fewer than k show heads with a probability of at most 2.5 %: the largest
    # such k, or one less.
    rank = math.floor((len(values) + 1 - _Z * math.sqrt(len(values))) / 2)
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of `median_interval` as a part of the median; None without one."""
    interval = median_interval(values)
    if interval is None or (median := statistics.median(values)) <= 0:
        return None
    return (interval[1] - interval[0]) / 2 / median
