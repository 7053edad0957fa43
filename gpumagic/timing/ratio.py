"""The ratio of two rows of times and its confidence interval; nothing but arithmetic.

Times of repeats are not normally distributed: they have a floor, a tail, and steps where a clock
changes. So the interval of a ratio is the one of the Mann-Whitney test (Hodges and Lehmann), which
assumes no distribution: all ratios of a repeat of the one to a repeat of the other are sorted, and
as many are left out at both ends as the test leaves to chance. It is exact for few repeats; there
is none for too few. The ratio is the median of the same ratios, and so is within its interval; the
ratio of the medians may lie outside.

The noise is that between the repeats of a run: what differs between two runs (another clock,
another process on the GPU) is not in it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import NormalDist

from gpumagic.system.text import plural

CONFIDENCE = 0.95
#: Up to so many pairs of repeats the test is computed exactly, above by its normal approximation.
_EXACT_PAIRS = 900


def median_ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios of each value to each of ``base``; all must be above 0."""
    ours, theirs = _logarithms(values), _logarithms(base)
    pairs = len(ours) * len(theirs)
    ranks = ((pairs + 1) // 2, pairs // 2 + 1)
    return math.exp(sum(_smallest_difference(ours, theirs, rank) for rank in ranks) / 2)


def ratio_interval(
    values: Sequence[float], base: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Return the confidence interval of the ratio of ``values`` to ``base``; all must be above 0.

    None for too few values: four and four are enough for 95 %, three and three are not.
    """
    left_out = _left_out(len(values), len(base), confidence)
    if left_out is None:
        return None
    pairs = len(values) * len(base)
    ours, theirs = _logarithms(values), _logarithms(base)
    low = _smallest_difference(ours, theirs, left_out + 1)
    high = _smallest_difference(ours, theirs, pairs - left_out)
    return math.exp(low), math.exp(high)


def _logarithms(values: Sequence[float]) -> list[float]:
    return [math.log(value) for value in sorted(values)]


def least_repeats(base: int) -> int:
    """Return with how many repeats there is an interval of their ratio to ``base`` ones."""
    return next(n for n in range(1, 10_000) if _left_out(n, base, CONFIDENCE) is not None)


def enough(base: int) -> str:
    """Return how many repeats it takes for an interval of their ratio to ``base`` ones."""
    least = least_repeats(base)
    return f"compared with {plural(base, 'repeat')} it takes {least} or more (-r {least})"


def _left_out(n: int, m: int, confidence: float) -> int | None:
    """Return how many of the n * m pairs to leave out at each end; None if there are too few."""
    tail = (1 - confidence) / 2
    if n * m > _EXACT_PAIRS:
        spread = math.sqrt(n * m * (n + m + 1) / 12)
        return max(math.floor(n * m / 2 + NormalDist().inv_cdf(tail) * spread - 0.5), 0)
    ways = _ways(n, m)
    total, seen, left_out = math.comb(n + m, n), 0, -1
    for number in ways:
        seen += number
        if seen > tail * total:
            break
        left_out += 1
    return None if left_out < 0 else left_out


def _ways(n: int, m: int) -> list[int]:
    """Return in how many orders of n and m values the Mann-Whitney statistic is 0, 1, 2 and so on.

    The coefficients of the Gaussian binomial: the product of (1 - q^(m+i)) / (1 - q^i).
    """
    size = n * m + 1
    ways = [1] + [0] * (size - 1)
    for i in range(1, n + 1):
        for k in range(size - 1, m + i - 1, -1):
            ways[k] -= ways[k - m - i]
        for k in range(i, size):
            ways[k] += ways[k - i]
    return ways


def _smallest_difference(ours: Sequence[float], theirs: Sequence[float], rank: int) -> float:
    """Return the rank-th smallest (from 1) of all differences between two sorted rows.

    By bisection on the value, since the pairs may be many.
    """
    if len(ours) * len(theirs) <= _EXACT_PAIRS:
        return sorted(a - b for a in ours for b in theirs)[rank - 1]
    low, high = ours[0] - theirs[-1], ours[-1] - theirs[0]
    while high - low > 1e-12:
        middle = (low + high) / 2
        if _pairs_up_to(middle, ours, theirs) >= rank:
            high = middle
        else:
            low = middle
    return high


def _pairs_up_to(difference: float, ours: Sequence[float], theirs: Sequence[float]) -> int:
    """Return in how many pairs a - b is at most ``difference``; by a loop over the shorter row."""
    if len(theirs) <= len(ours):
        return sum(bisect_right(ours, b + difference) for b in theirs)
    return sum(len(theirs) - bisect_left(theirs, a - difference) for a in ours)
