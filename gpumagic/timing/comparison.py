"""Whether timings differ by more than their noise; nothing but arithmetic.

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
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from gpumagic.cuda import torch_cuda
from gpumagic.errors import SpecError
from gpumagic.results import Compared, Comparison, CudaTiming, Quantity, Sample, Verdict
from gpumagic.system.text import plural

CONFIDENCE = 0.95
#: Up to so many pairs of repeats the test is computed exactly, above by its normal approximation.
_EXACT_PAIRS = 900


def compare(
    timings: Mapping[str, CudaTiming] | CudaTiming,
    *more: CudaTiming,
    baseline: str | None = None,
) -> Comparison:
    """Compare timings side by side, with the ratio of each to ``baseline`` (default: the first).

    A mapping from names to timings, or timings one after the other, which are called ``1``, ``2``…

    GPU times are compared where every timing has one that is more than an upper bound, else wall
    times.

    Raises:
        SpecError: fewer than two timings, or a baseline that is none of them.
    """
    if not isinstance(timings, Mapping):
        for each in (timings, *more):
            if not isinstance(each, CudaTiming):
                raise SpecError(
                    f"compare() compares timings, not {type(each).__name__}; gpumagic.load(FILE) "
                    "reads one, and --against compares peaks of memory"
                )
        timings = {str(place): timing for place, timing in enumerate((timings, *more), 1)}
    elif more:
        raise SpecError("compare() takes a mapping of timings, or timings alone, not both")
    if len(timings) < 2:
        raise SpecError(f"{plural(len(timings), 'timing')} to compare, but it takes two or more")
    first = next(iter(timings)) if baseline is None else baseline
    if first not in timings:
        raise SpecError(f"no timing {first!r} to compare with; there are {', '.join(timings)}")
    quantity, notes = _quantity(timings)
    base = timings[first]
    entries = [Compared(first, base, 1.0)]
    entries += [
        _compared(name, timing, base, quantity) for name, timing in timings.items() if name != first
    ]
    few = [entry.name for entry in entries[1:] if entry.verdict is None]
    if few:
        notes += (
            f"too few repeats to distinguish a difference from noise: {', '.join(few)}; "
            "four or more of each are enough (-r 4)",
        )
    return Comparison(tuple(entries), quantity, notes)


def _quantity(timings: Mapping[str, CudaTiming]) -> tuple[Quantity, tuple[str, ...]]:
    without = [name for name, timing in timings.items() if timing.gpu is None]
    bounds = [name for name, timing in timings.items() if timing.gpu_at_most]
    if len(without) == len(timings):
        return "wall", ("wall times are compared: there is no GPU time",)
    if without:
        return "wall", (f"wall times are compared: {', '.join(without)} has no GPU time",)
    if bounds:
        some = ", ".join(bounds)
        return "wall", (f"wall times are compared: the GPU time of {some} is an upper bound",)
    return "gpu", ()


def _compared(name: str, timing: CudaTiming, base: CudaTiming, quantity: Quantity) -> Compared:
    ours, theirs = (_sample(each, quantity) for each in (timing, base))
    if min(ours.best, theirs.best) <= 0:
        return Compared(name, timing)
    ratio = median_ratio(ours.all, theirs.all)
    interval = ratio_interval(ours.all, theirs.all)
    if interval is None:
        return Compared(name, timing, ratio)
    low, high = interval
    verdict: Verdict = "faster" if high < 1 else "slower" if low > 1 else "noise"
    if quantity == "gpu":
        resolution = torch_cuda.EVENT_RESOLUTION * (1 / timing.loops + 1 / base.loops)
        if abs(ours.median - theirs.median) <= resolution:
            verdict = "noise"
    return Compared(name, timing, ratio, interval, verdict)


def _sample(timing: CudaTiming, quantity: Quantity) -> Sample:
    return timing.gpu if quantity == "gpu" and timing.gpu is not None else timing.wall


# --- the statistics ---------------------------------------------------------------------------


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
        # a - b <= middle: for each b, the a's up to b + middle.
        if sum(bisect_right(ours, b + middle) for b in theirs) >= rank:
            high = middle
        else:
            low = middle
    return high
