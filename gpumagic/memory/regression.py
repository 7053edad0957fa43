"""Whether code has come to need more GPU memory than its stored result says: peaks are exact."""

from __future__ import annotations

from gpumagic.errors import RegressionError, SpecError
from gpumagic.render.units import bytes_
from gpumagic.results import MemoryDelta
from gpumagic.results.conditions import differences
from gpumagic.results.memory_comparison import MemoryComparison


def against(
    now: MemoryDelta,
    before: MemoryDelta,
    fail_above: float | None = None,
    strict: bool = False,
) -> MemoryComparison:
    """Compare a cell's peaks with stored ones; say in the notes where conditions were others.

    With ``fail_above`` (0.1: 10 % more) no device's peak may be beyond that. Under other conditions
    (device, driver, torch, CUDA) that is not checked, unless ``strict``: another torch allocates
    otherwise.

    Raises:
        RegressionError: a peak is beyond what is allowed; or ``strict``, and the conditions are
            others.
        SpecError: one of the results has no figures.
    """
    for name, each in (("this cell", now), ("the stored result", before)):
        if each.error is not None or each.partial:
            raise SpecError(
                f"nothing to compare: {name}: {each.error or 'it did not run to its end'}"
            )
    others = differences(now.conditions, before.conditions)
    peaks = {
        ordinal: (_peak(now, ordinal), _peak(before, ordinal))
        for ordinal in sorted({*now.devices, *before.devices})
    }
    if fail_above is not None and (strict or not others):
        beyond = [
            f"cuda:{ordinal}: peak {bytes_(peak)}, stored {bytes_(stored)}"
            for ordinal, (peak, stored) in peaks.items()
            if peak > stored * (1 + fail_above)
        ]
        if beyond:
            raise RegressionError(f"{'; '.join(beyond)}; allowed: {fail_above:.0%} more")
    if others and strict:
        raise RegressionError(f"other conditions than stored (--strict): {'; '.join(others)}")
    notes = (f"measured under other conditions: {'; '.join(others)}",) if others else ()
    return MemoryComparison(peaks, notes)


def _peak(delta: MemoryDelta, ordinal: int) -> int:
    return delta.devices[ordinal].peak if ordinal in delta.devices else 0
