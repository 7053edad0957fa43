"""Whether code needs more GPU memory than its stored result says: peaks are exact."""

from __future__ import annotations

from gpumagic.errors import RegressionError, SpecError
from gpumagic.render.units import bytes_, share
from gpumagic.results import MemoryDelta
from gpumagic.results.memory_comparison import MemoryComparison


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
    ordinals = sorted({*now.devices, *before.devices})
    peaks = {each: (_peak(now, each), _peak(before, each)) for each in ordinals}
    # A device without a peak has a context only; if all are so, there is that to show.
    return MemoryComparison({i: both for i, both in peaks.items() if any(both)} or peaks)


def check(compared: MemoryComparison, fail_above: float) -> None:
    """Check that no device's peak is higher by more than ``fail_above`` (0.1: 10 % more).

    Raises:
        RegressionError: a peak is beyond what is allowed.
    """
    beyond = [
        f"cuda:{ordinal}: {_higher(peak, stored, fail_above)}"
        for ordinal, (peak, stored) in compared.peaks.items()
        if peak > stored * (1 + fail_above)
    ]
    if beyond:
        percent = 100 * fail_above
        digits = next((n for n in range(9) if abs(round(percent, n) - percent) < 1e-9), 9)
        raise RegressionError(f"{'; '.join(beyond)}; allowed: {share(fail_above, digits)} more")


def _higher(peak: int, stored: int, fail_above: float) -> str:
    """Return both peaks, in bytes where rounding would hide that one is beyond what is allowed."""
    if bytes_(peak) == bytes_(int(stored * (1 + fail_above))):
        return f"peak {peak:,} B, stored {stored:,} B"
    return f"peak {bytes_(peak)}, stored {bytes_(stored)}"


def _peak(delta: MemoryDelta, ordinal: int) -> int:
    return delta.devices[ordinal].peak if ordinal in delta.devices else 0
