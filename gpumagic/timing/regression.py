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
#: With fewer stored repeats it takes very many to tell a difference from noise.
_FEW_STORED = 3


def enough_repeats(plan: Plan | None, before: CudaTiming) -> Plan | None:
    """Return the plan, with the repeats that it takes to tell a difference from noise.

    ``plan`` is None for a single run.

    Raises:
        SpecError: it asks for fewer, or the stored result has too few.
    """
    stored = len(before.wall.all)
    if stored < _FEW_STORED:
        raise SpecError(
            f"--fail-above: the stored result has {plural(stored, 'repeat')}, too few to tell a "
            "difference from noise; save it again with --repeat"
        )
    needed = least_repeats(stored)
    planned = 1 if plan is None else plan.repeats
    if plan is not None and plan.open_end:
        return replace(plan, least=needed)
    if planned < needed:
        raise SpecError(
            f"--fail-above: {plural(planned, 'repeat')} are too few to tell a difference from "
            f"noise; write --repeat, or -r {needed}"
        )
    return plan


def against(now: CudaTiming, before: CudaTiming, fail_above: float | None = None) -> Comparison:
    """Compare a timing with a stored one.

    With ``fail_above`` (0.1: 10 % more time) the lower end of the ratio's 95 % interval must not be
    beyond that, so that noise alone fails nothing.

    Raises:
        RegressionError: it is slower by more than that, beyond the noise.
        SpecError: ``fail_above``, and too few repeats to tell a difference from noise.
    """
    compared = compare({BEFORE: before, NOW: now})
    if fail_above is not None:
        _check(compared, fail_above)
    return compared


def _check(compared: Comparison, fail_above: float) -> None:
    entry = compared[NOW]
    if entry.ratio is None or entry.interval is None:
        raise SpecError(
            "--fail-above: too few repeats to tell a difference from noise; "
            "four or more of each would do: --repeat"
        )
    if entry.verdict == "slower" and entry.interval[0] > 1 + fail_above:
        low, high = entry.interval
        raise RegressionError(
            f"{entry.ratio:.2f} times as long as stored (95 % interval {low:.2f} to {high:.2f}; "
            f"allowed: {1 + fail_above:.2f})"
        )
