"""Timings side by side: which times are compared, and whether they differ beyond their noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real

from gpumagic.cuda import torch_cuda
from gpumagic.errors import RegressionError, SpecError
from gpumagic.results.base import differences
from gpumagic.results.comparison import Compared, Comparison, Quantity, Verdict
from gpumagic.results.timing import CudaTiming, Sample
from gpumagic.system.text import plural
from gpumagic.timing.repeat_plan import LEAST_REPEATS, median_interval

_NAMES = {"gpu": "GPU", "wall": "wall"}


def compare(
    timings: Mapping[str, CudaTiming] | CudaTiming,
    *more: CudaTiming,
    baseline: str | None = None,
    fail_above: float | None = None,
) -> Comparison:
    """Compare timings side by side, with the ratio of each to ``baseline`` (default: the first).

    A mapping from names to timings, or timings one after the other, which are called ``1``, ``2``…

    GPU times are compared where the baseline and another timing have exact ones, else wall times.
    Where one is a bound, the notes have what the ratio is at least and at most. The interval of a
    ratio is that of the two medians' 95 % confidence intervals. With ``fail_above``
    (0.1: 10 % more time) a timing that is slower than the baseline by more than that, beyond the
    noise, raises an error: the whole interval must be above 1.1, or what bounds leave of it. What
    was measured under other conditions (device, driver, torch, CUDA) does not: that, and where
    there is no verdict, is in the ``notes``.

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
    others = [timing for name, timing in timings.items() if name != first]
    quantity: Quantity = "gpu" if _exact(base) and any(map(_exact, others)) else "wall"
    entries, notes = [Compared(first, base, 1.0)], tuple[str, ...]()
    for name, timing in timings.items():
        if name != first:
            entries.append(_compared(name, timing, base, quantity))
            if not (_exact(timing) and _exact(base)):
                notes += _known_ratio(name, timing, first, base)
            if different := differences(timing.conditions, base.conditions):
                notes += (f"{name}: measured under other conditions: {'; '.join(different)}",)
    notes += tuple(f"{name}: stopped early" for name, each in timings.items() if each.partial)
    if quantity == "gpu" and (bound := [n for n, t in timings.items() if t.limited_by == "host"]):
        which = "GPU times are compared; host-bound, with a longer wall time:"
        notes = (f"{which} {', '.join(bound)}", *notes)
    if quantity == "wall" and any(each.ratio is not None for each in entries[1:]):
        notes = (_why_wall(timings), *notes)
    compared = Comparison(tuple(entries), quantity, notes)
    if fail_above is not None:
        if not isinstance(fail_above, Real) or not fail_above >= 0:
            raise SpecError(f"fail_above is {fail_above!r}, but must be a part such as 0.1")
        unknown = {each.name: check(compared, each, fail_above) for each in compared.entries[1:]}
        notes += tuple(f"{name}: {why}" for name, why in unknown.items() if why is not None)
    return replace(compared, notes=notes)


def check(compared: Comparison, entry: Compared, fail_above: float) -> str | None:
    """Check that an entry takes no more than ``fail_above`` (0.1: 10 %) longer than the baseline.

    The whole interval of the ratio must be beyond that, so that noise alone fails nothing. Returns
    why there is no verdict; None where there is one.

    Raises:
        RegressionError: it is slower by more than that.
        SpecError: there are too few repeats for an interval, or times of 0 s.
    """
    base = compared.entries[0]
    if different := differences(entry.timing.conditions, base.timing.conditions):
        return f"not checked, as it was measured under other conditions: {'; '.join(different)}"
    allowed = 1 + fail_above
    if (least := _surely(entry.timing, base.timing)) > allowed:
        raise RegressionError(
            f"at least {_rounded(least, math.floor)} times as long as {base.name} by GPU time "
            f"(allowed: {allowed:.4g})"
        )
    pair = (base, entry)
    if compared.quantity == "gpu" and not _exact(entry.timing):
        return f"not checked, as the GPU time of {entry.name} is an upper bound, or not known"
    bounds = [each.name for each in pair if each.timing.wall_at_most]
    if compared.quantity == "wall" and bounds and (entry.ratio is None or len(bounds) == 2):
        return f"not checked, as the wall time of {' and '.join(bounds)} is an upper bound"
    if entry.ratio is None or entry.interval is None:
        few = [each.name for each in pair if len(compared.sample(each).all) < LEAST_REPEATS]
        reason = "there is no ratio to a time of 0 s"
        if few:
            have = "has" if len(few) == 1 else "have"
            reason = f"{', '.join(few)} {have} fewer than {LEAST_REPEATS}"
        raise SpecError(f"a slowdown cannot be told from noise: {reason}")
    low, high = entry.interval
    if low > allowed:
        raise RegressionError(
            f"{entry.ratio:.4g} times as long as {base.name} by {_NAMES[compared.quantity]} time "
            f"(from {low:.4g} to {high:.4g}; allowed: {allowed:.4g})"
        )
    if high > allowed:
        return (
            f"no verdict: from {low:.3g} to {high:.3g} times as long, which is too uncertain for "
            f"{allowed:.3g}; more repeats (-r) make it more certain"
        )
    return None


def _surely(timing: CudaTiming, base: CudaTiming) -> float:
    """Return what the ratio of two GPU times is at least, of which one is a bound; 0: not known."""
    if timing.gpu_at_least is None or base.gpu is None or (_exact(timing) and _exact(base)):
        return 0.0
    now, before = (_median_interval(each, "gpu") for each in (timing, base))
    return 0.0 if now is None or before is None or not before[1] else now[0] / before[1]


def _exact(timing: CudaTiming) -> bool:
    """Return whether there is a GPU time that is no bound."""
    return timing.gpu is not None and not timing.gpu_at_most


def _why_wall(timings: Mapping[str, CudaTiming]) -> str:
    without = [name for name, timing in timings.items() if timing.gpu is None]
    bounds = [name for name, timing in timings.items() if timing.gpu_at_most]
    if len(without) == len(timings):
        return "wall times are compared: there is no GPU time"
    if without:
        return f"wall times are compared: no GPU time of {', '.join(without)}"
    return f"wall times are compared: only upper bounds of the GPU time of {', '.join(bounds)}"


def _known_ratio(name: str, timing: CudaTiming, first: str, base: CudaTiming) -> tuple[str, ...]:
    """Return what the ratio of two GPU times is at least and at most, of which one is a bound."""
    if timing.gpu is None or base.gpu is None or not (timing.gpu_seen and base.gpu_seen):
        return ()
    parts = []
    if base.gpu.median and (low := _least(timing) / base.gpu.median):
        parts.append(f"at least {_rounded(low, math.floor)}")
    if _least(base):
        parts.append(f"at most {_rounded(timing.gpu.median / _least(base), math.ceil)}")
    known = " and ".join(parts)
    return (f"{name}: {known} times the GPU time of {first}",) if parts else ()


def _rounded(value: float, function: Callable[[float], int]) -> str:
    """Return a bound with three digits, which is one, too."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    rounded = function(round(value / step, 6)) * step
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:.3g}"


def _least(timing: CudaTiming) -> float:
    """Return the GPU's seconds at least."""
    sample = timing.gpu_at_least if timing.gpu_at_most else timing.gpu
    return 0.0 if sample is None else sample.median


def _compared(name: str, timing: CudaTiming, base: CudaTiming, quantity: Quantity) -> Compared:
    ours, theirs = (_sample(each, quantity) for each in (timing, base))
    # One wall time that is a bound: what is sure of it may still show a difference.
    mixed = quantity == "wall" and timing.wall_at_most != base.wall_at_most
    if (quantity == "gpu" and not _exact(timing)) or min(ours.best, theirs.best) <= 0:
        return Compared(name, timing)
    ratio = ours.median / theirs.median
    now, before = (_median_interval(each, quantity, surely=mixed) for each in (timing, base))
    if now is None or before is None or not before[0]:
        return Compared(name, timing, None if mixed else ratio)
    low, high = now[0] / before[1], now[1] / before[0]
    if mixed and low <= 1 <= high:
        return Compared(name, timing)
    verdict: Verdict = "faster" if high < 1 else "slower" if low > 1 else "noise"
    if quantity == "gpu":
        resolution = torch_cuda.EVENT_RESOLUTION * (1 / timing.loops + 1 / base.loops)
        if abs(ours.median - theirs.median) <= resolution:
            verdict = "noise"
    return Compared(name, timing, ratio, (low, high), verdict)


def _median_interval(
    timing: CudaTiming, quantity: Quantity, *, surely: bool = False
) -> tuple[float, float] | None:
    """Return the interval of the median; where repeats are not exact, from what is sure of each.

    Of wall times only if ``surely``: each is at least until Python returned.
    """
    most = least = _sample(timing, quantity)
    if quantity == "gpu" and timing.gpu_at_least is not None:
        least = timing.gpu_at_least
    elif surely and timing.wall_at_most:
        if timing.host is None:
            return None
        least = timing.host
    lower, upper = median_interval(least.all), median_interval(most.all)
    return None if lower is None or upper is None else (lower[0], upper[1])


def _sample(timing: CudaTiming, quantity: Quantity) -> Sample:
    return timing.gpu if quantity == "gpu" and timing.gpu is not None else timing.wall
