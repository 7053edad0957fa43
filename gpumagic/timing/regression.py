"""Whether code has become slower than its stored result says."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.errors import RegressionError, SpecError
from gpumagic.results import Comparison, CudaTiming
from gpumagic.system.text import plural
from gpumagic.timing.comparison import compare, least_repeats
from gpumagic.timing.plan import Plan
from gpumagic.timing.stopping_rule import half_width, median_interval

#: What the two timings are called in the comparison.
BEFORE, NOW = "stored", "now"
#: With fewer stored repeats it takes very many to distinguish a difference from noise.
_FEW_STORED = 3


def enough_repeats(plan: Plan | None, before: CudaTiming) -> Plan | None:
    """Return the plan, with the repeats that it takes to distinguish a difference from noise.

    ``plan`` is None for a single run.

    Raises:
        SpecError: it asks for fewer, or the stored result has too few.
    """
    stored = len(before.wall.all)
    if stored < _FEW_STORED:
        raise SpecError(
            f"--fail-above: the stored result has {plural(stored, 'repeat')}, too few to "
            "distinguish a difference from noise; save it again with --repeat"
        )
    needed = least_repeats(stored)
    planned = 1 if plan is None else plan.repeats
    if plan is not None and plan.open_end:
        return replace(plan, least=needed)
    if planned < needed:
        raise SpecError(
            f"--fail-above: {plural(planned, 'repeat')} cannot distinguish a difference from "
            f"noise; write --repeat, or -r {needed}"
        )
    return plan


def against(now: CudaTiming, before: CudaTiming) -> Comparison:
    """Compare a timing with a stored one.

    Raises:
        SpecError: they cannot be compared.
    """
    return compare({BEFORE: before, NOW: now})


def check(compared: Comparison, fail_above: float) -> str | None:
    """Check that code has not become slower by more than ``fail_above`` (0.1: 10 % more time).

    The lower end of the ratio's 95 % interval must not be beyond that, so that noise alone fails
    nothing. Where a median is less certain than that, the medians' own intervals decide. Returns
    why there is no verdict; None where there is one.

    Raises:
        RegressionError: it is slower by more than that, beyond the noise.
        SpecError: too few repeats to distinguish a difference from noise.
    """
    entry, allowed = compared[NOW], 1 + fail_above
    if entry.ratio is None or entry.interval is None:
        raise SpecError(
            "--fail-above: too few repeats to distinguish a difference from noise; write "
            f"--repeat, or -r {least_repeats(len(compared.sample(compared[BEFORE]).all))}"
        )
    is_slower = entry.verdict == "slower" and entry.interval[0] > allowed
    vague, width = max(_half_widths(compared), key=lambda each: each[1])
    if width > fail_above:
        low, high = _bounds(compared)
        if low <= allowed and (is_slower or (fail_above and high > allowed)):
            which, again = ("", "") if vague == NOW else ("stored ", "save it again: ")
            return (
                f"--fail-above: no verdict, since the {which}median is known to "
                f"±{100 * width:.1f} % only; {again}more repeats (-r) make it more precise"
            )
    if is_slower:
        low, high = entry.interval
        digits = _digits(low, allowed)
        raise RegressionError(
            f"{entry.ratio:.{digits}f} times as long as stored (95 % interval {low:.{digits}f} to "
            f"{high:.{digits}f}; allowed: {allowed:.{digits}f})"
        )
    return None


def _half_widths(compared: Comparison) -> list[tuple[str, float]]:
    """Return each timing's name, and half the width of its median's interval (0 if not known)."""
    return [(each.name, half_width(compared.sample(each).all) or 0.0) for each in compared]


def _bounds(compared: Comparison) -> tuple[float, float]:
    """Return the least and the largest ratio of the medians by the interval of each."""
    before, now = (
        median_interval(sample.all) or (sample.median, sample.median)
        for sample in (compared.sample(compared[BEFORE]), compared.sample(compared[NOW]))
    )
    return now[0] / before[1], now[1] / before[0]


def _digits(low: float, allowed: float) -> int:
    """Return the digits after the point, two or more, with which ``low`` is seen to be larger."""
    return next((n for n in range(2, 15) if f"{low:.{n}f}" != f"{allowed:.{n}f}"), 15)
