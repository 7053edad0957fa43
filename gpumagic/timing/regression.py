"""Whether code has become slower than its stored result says."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.errors import RegressionError, SpecError
from gpumagic.results import Comparison, CudaTiming
from gpumagic.system.text import plural
from gpumagic.timing.comparison import compare, least_repeats
from gpumagic.timing.plan import Plan

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
            f"--fail-above: {plural(planned, 'repeat')} are too few to distinguish a "
            f"difference from noise; write --repeat, or -r {needed}"
        )
    return plan


def against(now: CudaTiming, before: CudaTiming) -> Comparison:
    """Compare a timing with a stored one.

    Raises:
        SpecError: they cannot be compared.
    """
    return compare({BEFORE: before, NOW: now})


def check(compared: Comparison, fail_above: float) -> None:
    """Check that code has not become slower by more than ``fail_above`` (0.1: 10 % more time).

    The lower end of the ratio's 95 % interval must not be beyond that, so that noise alone fails
    nothing.

    Raises:
        RegressionError: it is slower by more than that, beyond the noise.
        SpecError: too few repeats to distinguish a difference from noise.
    """
    entry = compared[NOW]
    if entry.ratio is None or entry.interval is None:
        raise SpecError(
            "--fail-above: too few repeats to distinguish a difference from noise; "
            "four or more of each would do: --repeat"
        )
    if entry.verdict == "slower" and entry.interval[0] > 1 + fail_above:
        low, high = entry.interval
        digits = _digits(low, 1 + fail_above)
        raise RegressionError(
            f"{entry.ratio:.{digits}f} times as long as stored (95 % interval {low:.{digits}f} to "
            f"{high:.{digits}f}; allowed: {1 + fail_above:.{digits}f})"
        )


def _digits(low: float, allowed: float) -> int:
    """Return the digits after the point, two or more, with which ``low`` is seen to be larger."""
    return next((n for n in range(2, 15) if f"{low:.{n}f}" != f"{allowed:.{n}f}"), 15)
