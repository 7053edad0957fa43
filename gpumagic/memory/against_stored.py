"""The peaks of a cell compared with stored ones: ``%%gpumem --against FILE``."""

from __future__ import annotations

from gpumagic.errors import RegressionError, SpecError
from gpumagic.results.conditions import differences
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta, MemoryComparison, MemoryDelta


def against(now: MemoryDelta, before: MemoryDelta) -> MemoryComparison:
    """Compare a cell's peaks with stored ones.

    Raises:
        SpecError: one of the results has no figures.
    """
    for name, each in (("this cell", now), ("the stored result", before)):
        if each.error is not None or each.partial:
            raise SpecError(
                f"nothing to compare: {name}: {each.error or 'it did not run to its end'}"
            )
    none = DeviceMemoryDelta(0, 0, 0)
    peaks = {
        i: (now.devices.get(i, none).peak, before.devices.get(i, none).peak)
        for i in sorted({*now.devices, *before.devices})
    }
    # A device without a peak has a context only; if all are so, there is that to show.
    shown = {i: both for i, both in peaks.items() if any(both)} or peaks
    others = "; ".join(differences(now.conditions, before.conditions))
    notes = (f"other conditions than those stored: {others}",) if others else ()
    return MemoryComparison(shown, notes)


def check(compared: MemoryComparison, fail_above: float) -> None:
    """Check that no device's peak is higher by more than ``fail_above`` (0.1: 10 % more).

    Raises:
        RegressionError: a peak is beyond what is allowed.
    """
    beyond = [
        f"cuda:{ordinal}: peak {peak:,} B, stored {stored:,} B"
        for ordinal, (peak, stored) in compared.peaks.items()
        if peak > stored * (1 + fail_above)
    ]
    if beyond:
        raise RegressionError(f"{'; '.join(beyond)}; allowed: {100 * fail_above:g} % more")
