"""Timings side by side: which times are compared, and whether they differ beyond their noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from numbers import Real
from typing import NamedTuple

from gpumagic.cuda.pytorch import cuda_events
from gpumagic.errors import RegressionError, SpecError
from gpumagic.results.conditions import differences
from gpumagic.results.timing.comparison import NAMES, Compared, Comparison, Ratio, Verdict
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.sample import Sample
from gpumagic.timing.precision import LEAST_REPEATS, median_interval
from gpumagic.timing.summary import waited_for_a_processor
from gpumagic.wording import plural


def compare(
    timings: Mapping[str, CudaTiming] | CudaTiming,
    *more: CudaTiming,
    baseline: str | None = None,
    fail_above: float | None = None,
) -> Comparison:
    """Compare timings side by side, with the ratio of each to ``baseline`` (default: the first).

    A mapping from names to timings, or timings one after the other, which are called ``1``, ``2``…

    Wall times and GPU times are compared, each pair by itself. The wall time counts: people wait
    for it. The GPU time counts where both timings are GPU-bound. The interval of a ratio comes from
    the 95 % confidence intervals of the two medians; of an upper bound, from what is sure. The
    interval includes the ratio of the best repeats: other programs may have slowed down most of
    the repeats, but not all.

    With ``fail_above`` (0.1: 10 % more time) a timing that is surely slower than the baseline by
    more than that, by either time, raises an error: the whole interval must be above 1.1. A timing
    that was measured under other conditions (device, driver, torch, CUDA) raises none. The
    ``notes`` say so, and where there is no verdict.

    Raises:
        RegressionError: a timing is slower than ``fail_above`` allows.
        SpecError: fewer than two timings, a baseline that is none of them, or with ``fail_above``
            too few repeats.

    Examples:
        >>> x = torch.ones(1024, 1024, device="cuda")
        >>> one = gpumagic.cudatime(lambda: x @ x, n=10, r=6)
        >>> two = gpumagic.cudatime(lambda: x @ x @ x, n=10, r=6)
        >>> print(gpumagic.compare({"one": one, "two": two}))  # doctest: +ELLIPSIS
        Name ...

    .. versionadded:: 0.1.0
    """
    if not isinstance(timings, Mapping):
        timings = {str(place): timing for place, timing in enumerate((timings, *more), 1)}
    elif more:
        raise SpecError("compare() takes a mapping of timings, or timings alone, not both")
    for each in timings.values():
        if not isinstance(each, CudaTiming):
            raise SpecError(
                f"compare() compares timings, not {type(each).__name__}; gpumagic.load(FILE) "
                "reads one, `with cudatime() as t:` makes t.result"
            )
    if len(timings) < 2:
        raise SpecError(f"{plural(len(timings), 'timing')} to compare, but it takes two or more")
    first = next(iter(timings)) if baseline is None else baseline
    if first not in timings:
        raise SpecError(f"no timing {first!r} to compare with; there are {', '.join(timings)}")
    base = timings[first]
    others = {name: timing for name, timing in timings.items() if name != first}
    notes = [
        f"{name}: measured under other conditions: {'; '.join(different)}"
        for name, timing in others.items()
        if (different := differences(timing.conditions, base.conditions))
    ]
    notes += [f"{name}: stopped early" for name, each in timings.items() if each.partial]
    for name, each in timings.items():
        notes += [f"{name}: {why}" for why in waited_for_a_processor(each.processor_wait)]
    entries = (Compared(first, base), *(_compared(*each, base) for each in others.items()))
    compared = Comparison(entries, tuple(notes))
    if fail_above is None:
        return compared
    if not isinstance(fail_above, Real) or not fail_above >= 0:
        raise SpecError(f"fail_above is {fail_above!r}, but must be a part such as 0.1")
    unknown = {each.name: check(compared, each, fail_above) for each in entries[1:]}
    notes += [f"{name}: {why}" for name, why in unknown.items() if why is not None]
    return replace(compared, notes=tuple(notes))


def check(compared: Comparison, entry: Compared, fail_above: float) -> str | None:
    """Check that an entry takes no more than ``fail_above`` (0.1: 10 %) longer than the baseline.

    The whole interval of a ratio must be beyond that, so that noise alone fails nothing. Returns
    why there is no verdict by the time that counts; None where there is one.

    Raises:
        RegressionError: it is surely slower by more than that, by its wall time or its GPU time.
        SpecError: there are too few repeats for an interval, or times of 0 s.
    """
    base = compared.entries[0]
    if different := differences(entry.timing.conditions, base.timing.conditions):
        return f"not checked, as it was measured under other conditions: {'; '.join(different)}"
    allowed = 1 + fail_above
    for name, ratio in ((NAMES["wall"], entry.wall), (NAMES["gpu"], entry.gpu)):
        if ratio.bounds is not None and ratio.bounds[0] > allowed:
            raise RegressionError(
                f"{entry.name} is slower than {base.name} by {name}: {ratio.text} "
                f"(allowed: {allowed:.4g} times as long)"
            )
    counts = entry.headline
    if counts.bounds is None:
        raise SpecError(
            f"a slowdown cannot be told from noise with {base.timing.repeat} and "
            f"{entry.timing.repeat} repeats: it takes {LEAST_REPEATS} or more, and times above 0 s"
        )
    low, high = counts.bounds
    if high <= allowed:
        return None
    more = "more repeats (-r) make it more certain"
    if counts.value is None:
        more = "a time with ≤ is an upper bound"
    return (
        f"{NAMES[entry.quantity]}: undecided. It takes {low:.3g} to {high:.3g} times as long; the "
        f"limit is {allowed:.3g}; {more}"
    )


# --- one pair -------------------------------------------------------------------------------------


class _Times(NamedTuple):
    """The GPU time or the wall time of a timing: the most and the least of each repeat."""

    most: Sample
    least: Sample
    #: Whether the median is an upper bound.
    is_bound: bool

    @property
    def interval(self) -> tuple[float, float] | None:
        """The least and the most that the median may be; None for too few repeats."""
        lower, upper = median_interval(self.least.all), median_interval(self.most.all)
        return None if lower is None or upper is None else (lower[0], upper[1])


def _compared(name: str, timing: CudaTiming, base: CudaTiming) -> Compared:
    wall = _ratio(_wall(timing), _wall(base))
    now, before = _gpu(timing), _gpu(base)
    if now is None or before is None:
        return Compared(name, timing, wall)
    # Events do not tell less than their resolution apart.
    resolution = cuda_events.RESOLUTION * (1 / timing.loops + 1 / base.loops)
    gpu = _ratio(now, before, resolution)
    both_are_gpu_bound = timing.limited_by == base.limited_by == "gpu"
    is_known = both_are_gpu_bound and not (now.is_bound or before.is_bound)
    return Compared(name, timing, wall, gpu, "gpu" if is_known else "wall")


def _times(most: Sample, least: Sample | None, is_bound: bool) -> _Times:
    """Return a time. Of an upper bound without a ``least`` the least is 0."""
    if least is None:
        least = Sample((0.0,) * len(most.all)) if is_bound else most
    return _Times(most, least, is_bound)


def _wall(timing: CudaTiming) -> _Times:
    # A wall time that is a bound lasted at least until Python had returned.
    least = timing.host if timing.wall_at_most else None
    return _times(timing.wall, least, timing.wall_at_most)


def _gpu(timing: CudaTiming) -> _Times | None:
    if timing.gpu is None or (timing.gpu_at_most and not timing.gpu_seen):
        return None  # a bound on the time of a GPU that may not have worked compares with nothing
    return _times(timing.gpu, timing.gpu_at_least, timing.gpu_at_most)


def _ratio(now: _Times, before: _Times, resolution: float = 0.0) -> Ratio:
    """Return the ratio of two times, which differ by more than ``resolution`` seconds or not."""
    value, theirs = None, before.most.median
    if theirs > 0 and not (now.is_bound or before.is_bound):
        value = now.most.median / theirs
    ours, others = now.interval, before.interval
    if ours is None or others is None or not others[1]:
        return Ratio(value)
    low, high = ours[0] / others[1], ours[1] / others[0] if others[0] else inf
    if not low and high == inf:
        return Ratio(value)
    if value is not None and before.most.best:  # a busy machine disturbs the best repeats least
        best = now.most.best / before.most.best
        low, high = min(low, best), max(high, best)
    verdict: Verdict | None = "faster" if high < 1 else "slower" if low > 1 else "noise"
    if value is None and verdict == "noise":
        verdict = None  # bounds leave it open
    if value is not None and abs(now.most.median - theirs) <= resolution:
        verdict = "noise"
    return Ratio(value, (low, None if high == inf else high), verdict)
