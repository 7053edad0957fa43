"""Whether code has become slower than its stored result says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpumagic.errors import RegressionError, SpecError
from gpumagic.results import Compared, Comparison, CudaTiming
from gpumagic.results.conditions import differences
from gpumagic.system.text import plural
from gpumagic.timing.host_speed import slowdown
from gpumagic.timing.plan import Plan
from gpumagic.timing.ratio import enough, least_repeats, median_ratio, ratio_interval

#: With fewer stored repeats it takes very many to distinguish a difference from noise.
_FEW_STORED = 3
#: The part of a time that is left at least without the waiting in it: a ratio of 0 is none.
_LEFT = 1e-6
#: What a time is longer by for each second of waiting: where others have used the CPU meanwhile,
#: the thread finds its caches cold.
_COST = 1.25


def enough_repeats(plan: Plan | None, before: CudaTiming) -> Plan | None:
    """Return the plan, with the repeats that it takes to distinguish a difference from noise.

    ``plan`` is None for a single run.

    Raises:
        SpecError: it asks for fewer, or the stored result has too few, or a time of 0 s.
    """
    stored = len(before.wall.all)
    if stored < _FEW_STORED:
        raise SpecError(
            f"--fail-above: the stored result has {plural(stored, 'repeat')}, too few to "
            "distinguish a difference from noise; save it again with --repeat"
        )
    gpu = None if before.gpu_at_most else before.gpu
    if min(sample.best for sample in (before.wall, gpu) if sample is not None) <= 0:
        raise SpecError(
            "--fail-above: the stored result has a time of 0 s, and there is no ratio to that; "
            "save it again"
        )
    needed = least_repeats(stored)
    planned = 1 if plan is None else plan.repeats
    if plan is not None and plan.open_end:
        return replace(plan, least=needed)
    if planned < needed:
        raise SpecError(
            f"--fail-above: {plural(planned, 'repeat')} cannot distinguish a difference from "
            f"noise; {enough(stored)}, or --repeat"
        )
    return plan


def check(compared: Comparison, fail_above: float, entry: Compared | None = None) -> str | None:
    """Check that code has not become slower by more than ``fail_above`` (0.1: 10 % more time).

    ``entry`` (default: the first after the baseline) has if the whole 95 % interval of the ratio is
    beyond that, so that noise alone fails nothing. There is no verdict where that interval is too
    wide for it, nor where the process had to wait for a CPU so long, or the host has become so
    slow, that this may be the cause: without it the ratio would not be beyond what is allowed.
    Returns why there is none; None where there is one.

    Raises:
        RegressionError: it is slower by more than that, beyond the noise.
        SpecError: too few repeats to distinguish a difference from noise.
    """
    __tracebackhide__ = True
    entry, allowed = entry or compared[1], 1 + fail_above
    if entry.ratio is None or entry.interval is None:
        raise SpecError(compared.notes[-1])
    low, high = entry.interval
    if entry.verdict == "slower" and low > allowed:
        if (reason := _held_up(compared, entry, allowed)) is not None:
            return reason
        ratio, least, most, limit = _figures((entry.ratio, low, high, allowed))
        raise RegressionError(
            f"{ratio} times as long as {compared.baseline} (95 % interval {least} to {most}; "
            f"allowed: {limit})"
        )
    if fail_above and low <= allowed < high and high - low > 2 * fail_above:
        _, least, most, limit = _figures((entry.ratio, low, high, allowed))
        return (
            f"no verdict: the 95 % interval of the ratio, {least} to {most}, is too wide for "
            f"{limit}; more repeats (-r) make it narrower"
        )
    return None


def guarded(compared: Comparison, fail_above: float | None, *, strict: bool) -> Comparison:
    """Check each entry as ``--against`` does; return the comparison with notes on those unchecked.

    ``fail_above`` is None only with ``strict``.

    Raises:
        RegressionError: an entry is slower than ``fail_above`` allows, or ``strict``, and it was
            measured under other conditions than the baseline.
        SpecError: there are too few repeats.
    """
    __tracebackhide__ = True
    base, *others = compared
    notes, problems = list(compared.notes), []
    for entry in others:
        name = f"{entry.name}: " if len(others) > 1 else ""
        different = "; ".join(differences(entry.timing.conditions, base.timing.conditions))
        if different:
            note = f"{name}measured under other conditions: {different}"
            if not strict:
                note += "; fail_above was not applied, strict=True raises an error then"
            notes.append(note)
            if not strict:
                continue
        try:
            if fail_above is not None:
                unknown = check(compared, fail_above, entry)
                if unknown is not None:
                    notes.append(f"{name}{unknown}")
        except RegressionError as error:
            problems.append(f"{name}{error}")
        if different:
            problems.append(f"{name}other conditions than {base.name}: {different}")
    if problems:
        raise RegressionError("; ".join(problems))
    return replace(compared, notes=tuple(notes))


def _held_up(compared: Comparison, entry: Compared, allowed: float) -> str | None:
    """Return why a slower entry is no regression: it waited for a CPU, or the host was slower.

    None if neither explains it. So may a GPU time be longer, of code whose launches the GPU waits
    for: by no more than the time until the code returned. A slower host does not slow down code
    that is known to be bound by the GPU.
    """
    timing, base = entry.timing, compared.entries[0]
    sample, before = compared.sample(entry), compared.sample(base).all
    of_host = timing.wall if sample is timing.wall else timing.host or timing.wall
    # The first repeats have no GPU time if CUDA was initialised in them.
    limits = of_host.all[-len(sample.all) :]
    # The waiting of all threads is added up, and may be more than the run took.
    waits = (0.0,) * len(limits) if timing.cpu_wait is None else timing.cpu_wait.all[-len(limits) :]
    waited = [min(pair) for pair in zip(waits, limits, strict=False)]
    without = [
        max(time - _COST * wait, time * _LEFT)
        for time, wait in zip(sample.all, waited, strict=False)
    ]
    if median_ratio(without, before) <= allowed:
        part = 100 * sum(waited) / sum(timing.wall.all)
        return (
            f"no verdict: the process waited for a CPU for up to {part:.3g} % of the wall time, "
            "and that may be the cause; measure again when the machine is less busy"
        )
    slower = slowdown(timing.conditions, base.timing.conditions)
    if timing.bound == "gpu" or slower == 1:
        return None
    without = [
        max(time - min(time, limit) * (1 - 1 / slower), time * _LEFT)
        for time, limit in zip(without, limits, strict=False)
    ]
    interval = ratio_interval(without, before)
    if interval is None or interval[0] > allowed:
        return None
    return (
        f"no verdict: the host is up to {slower:.2f} times as slow as for {base.name}, and that may"
        " be the cause; measure again when the machine is less busy, or save it again"
    )


def _figures(values: Sequence[float]) -> list[str]:
    """Return ratios with the digits after the point, two or more, that it takes.

    The last one, what is allowed, is shown as it was typed, and the lower bound of the interval
    (the second) is seen to differ from it.
    """
    _, low, _, allowed = values
    digits = next(
        (
            n
            for n in range(2, 15)
            if abs(round(allowed, n) - allowed) < 1e-12 and f"{low:.{n}f}" != f"{allowed:.{n}f}"
        ),
        15,
    )
    return [f"{value:.{digits}f}" for value in values]
