"""Timings side by side: which times are compared, and whether they differ beyond their noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real

from gpumagic.cuda import torch_cuda
from gpumagic.errors import SpecError
from gpumagic.results import Compared, Comparison, CudaTiming, Quantity, Sample, Verdict
from gpumagic.results.sample import LONGEST, SHORTEST
from gpumagic.system.text import plural
from gpumagic.timing.percentage import excess
from gpumagic.timing.ratio import enough, median_ratio, ratio_interval
from gpumagic.timing.regression import guarded

#: With so many repeats of each there is an interval.
_ENOUGH = 4


def compare(
    timings: Mapping[str, CudaTiming] | CudaTiming,
    *more: CudaTiming,
    baseline: str | None = None,
    fail_above: float | str | None = None,
    strict: bool = False,
) -> Comparison:
    """Compare timings side by side, with the ratio of each to ``baseline`` (default: the first).

    A mapping from names to timings, or timings one after the other, which are called ``1``, ``2``…

    GPU times are compared where every timing has one that is more than an upper bound, else wall
    times. With ``fail_above`` (0.1 or ``"10%"``: 10 % more time) a timing that is slower than the
    baseline by more than that, beyond the noise, raises an error, as ``--against FILE --fail-above
    10%`` does: the whole 95 % interval of the ratio must be above 1.1. What was measured under
    other conditions (device, driver, torch, CUDA) does not, unless ``strict``; that, and where
    there is no verdict, is in the result's ``notes``.

    Raises:
        RegressionError: a timing is slower than ``fail_above`` allows, or ``strict``, and it was
            measured under other conditions.
        SpecError: fewer than two timings, a baseline that is none of them, times that no clock
            gives, a ``fail_above`` that allows nothing, or too few repeats for it.
    """
    __tracebackhide__ = True
    allowed = None if fail_above is None else _allowed(fail_above)
    if not isinstance(timings, Mapping):
        timings = {str(place): timing for place, timing in enumerate((timings, *more), 1)}
    elif more:
        raise SpecError("compare() takes a mapping of timings, or timings alone, not both")
    for each in timings.values():
        if not isinstance(each, CudaTiming):
            raise SpecError(
                f"compare() compares timings, not {type(each).__name__}; gpumagic.load(FILE) "
                "reads one, `with cudatime() as t:` makes t.result, and --against compares peaks "
                "of memory"
            )
    if len(timings) < 2:
        raise SpecError(f"{plural(len(timings), 'timing')} to compare, but it takes two or more")
    first = next(iter(timings)) if baseline is None else baseline
    if first not in timings:
        raise SpecError(f"no timing {first!r} to compare with; there are {', '.join(timings)}")
    quantity, notes = _quantity(timings)
    _check_times(timings, quantity)
    base = timings[first]
    entries = [Compared(first, base, 1.0)]
    entries += [
        _compared(name, timing, base, quantity) for name, timing in timings.items() if name != first
    ]
    compared = Comparison(tuple(entries), quantity, (*notes, *_without_verdict(entries, quantity)))
    if allowed is None and not strict:
        return compared
    return guarded(compared, allowed, strict=strict)


def _allowed(fail_above: object) -> float:
    """Return the part of a baseline that ``fail_above`` allows; a text is one as on a magic's line.

    Raises:
        SpecError: it is no such part.
    """
    if isinstance(fail_above, str):
        try:
            return excess(fail_above)
        except ValueError as error:
            raise SpecError(f"fail_above: {error}") from None
    if isinstance(fail_above, bool) or not isinstance(fail_above, Real):
        raise SpecError(
            f"fail_above is no number, but {type(fail_above).__name__}; 0.1 or '10%' allows 10 %"
        )
    part = float(fail_above)
    if not part >= 0:
        raise SpecError(f"fail_above is {part:g}, but must be 0 or more; 0.1 allows 10 %")
    return part


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


def _check_times(timings: Mapping[str, CudaTiming], quantity: Quantity) -> None:
    """Check that the times are such as a clock gives: ratios of others may be no numbers.

    Raises:
        SpecError: one is not.
    """
    for name, timing in timings.items():
        for value in _sample(timing, quantity).all:
            if value and not SHORTEST <= value <= LONGEST:
                raise SpecError(f"{name}: no clock gives a time of {value:g} s")


def _without_verdict(entries: Sequence[Compared], quantity: Quantity) -> tuple[str, ...]:
    """Return why entries have no verdict, by the timing at fault: the baseline may be it."""
    notes = []
    if without := [entry for entry in entries[1:] if entry.verdict is None]:
        samples = {each.name: _sample(each.timing, quantity).all for each in (entries[0], *without)}
        zero = [name for name, times in samples.items() if min(times) <= 0]
        few = [
            f"{name} has {len(times)}" for name, times in samples.items() if len(times) < _ENOUGH
        ]
        if zero:
            notes.append(f"there is no ratio to a time of 0 s: {', '.join(zero)}")
        if few:
            base = len(samples[entries[0].name])
            advice = f"{_ENOUGH} or more of each are enough (-r {_ENOUGH})"
            if base >= _ENOUGH:  # it need not be measured again
                advice = enough(base)
            notes.append(
                "too few repeats to distinguish a difference from noise: "
                f"{', '.join(few)}; {advice}"
            )
    return tuple(notes)


def _compared(name: str, timing: CudaTiming, base: CudaTiming, quantity: Quantity) -> Compared:
    ours, theirs = (_sample(each, quantity) for each in (timing, base))
    if min(ours.best, theirs.best) <= 0:
        return Compared(name, timing)
    ratio = median_ratio(ours.all, theirs.all)
    interval = ratio_interval(ours.all, theirs.all)
    difference = ours.median - theirs.median
    # Of times at two levels the medians may say the opposite: then there is no direction.
    is_clear = (ratio - 1) * difference >= 0
    if interval is None:
        return Compared(name, timing, ratio if is_clear else None)
    low, high = interval
    verdict: Verdict = "noise"
    if is_clear:
        verdict = "faster" if high < 1 else "slower" if low > 1 else "noise"
    if quantity == "gpu":
        resolution = torch_cuda.EVENT_RESOLUTION * (1 / timing.loops + 1 / base.loops)
        if abs(difference) <= resolution:
            verdict = "noise"
    return Compared(name, timing, ratio, interval, verdict)


def _sample(timing: CudaTiming, quantity: Quantity) -> Sample:
    return timing.gpu if quantity == "gpu" and timing.gpu is not None else timing.wall
