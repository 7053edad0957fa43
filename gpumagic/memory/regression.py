"""Whether code has come to need more GPU memory than its stored result says: peaks are exact."""

from __future__ import annotations

from gpumagic.errors import RegressionError, SpecError
from gpumagic.render.units import bytes_
from gpumagic.results import MemoryDelta
from gpumagic.results.conditions import differences


def against(
    now: MemoryDelta,
    before: MemoryDelta,
    *,
    fail_above: float | None = None,
    strict: bool = False,
) -> list[str]:
    """Compare a cell's peaks with stored ones; return a line for each device, and notes.

    With ``fail_above`` (0.1: 10 % more) no device's peak may be beyond that. Under other conditions
    (device, driver, torch, CUDA) that is not checked, unless ``strict``: another torch allocates
    otherwise.

    Raises:
        RegressionError: a peak is beyond what is allowed.
        SpecError: one of the results has no figures, or both are of different devices; ``strict``,
            and the conditions are others.
    """
    for name, each in (("this cell", now), ("the stored result", before)):
        if each.error is not None or each.partial:
            raise SpecError(f"nothing to compare: {name} has {each.error or 'not run to its end'}")
    lines = []
    others = differences(now.conditions, before.conditions)
    if others:
        if strict:
            raise SpecError(
                f"--strict: {'; '.join(others)}; store a result of these conditions with --save"
            )
        lines.append(f"measured under other conditions: {'; '.join(others)}")
    beyond = []
    for ordinal in sorted({*now.devices, *before.devices}):
        peak, stored = (
            each.devices[ordinal].peak if ordinal in each.devices else 0 for each in (now, before)
        )
        line = f"cuda:{ordinal}: peak {bytes_(peak)}, stored {bytes_(stored)}"
        if stored:
            line += f" ({(peak - stored) / stored:+.1%})"
        lines.append(line)
        if fail_above is not None and peak > stored * (1 + fail_above):
            beyond.append(line)
    if beyond and (strict or not others):
        raise RegressionError(f"{'; '.join(beyond)}; allowed: {fail_above:+.0%}")
    return lines
