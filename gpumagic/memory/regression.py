"""Whether code needs more GPU memory than its stored result says: peaks are exact."""

from __future__ import annotations

from gpumagic.errors import RegressionError, SpecError
from gpumagic.render.units import bytes_, share
from gpumagic.results import MemoryDelta
from gpumagic.results.memory_comparison import MemoryComparison


def against(
    now: MemoryDelta, before: MemoryDelta, fail_above: float | None = None
) -> MemoryComparison:
    """Compare a cell's peaks with stored ones.

    With ``fail_above`` (0.1: 10 % more) no device's peak may be beyond that.

    Raises:
        RegressionError: a peak is beyond what is allowed.
        SpecError: one of the results has no figures.
    """
    for name, each in (("this cell", now), ("the stored result", before)):
        if each.error is not None or each.partial:
            raise SpecError(
                f"nothing to compare: {name}: {each.error or 'it did not run to its end'}"
            )
    peaks = {
        ordinal: (_peak(now, ordinal), _peak(before, ordinal))
        for ordinal in sorted({*now.devices, *before.devices})
    }
    if fail_above is not None:
        beyond = [
            f"cuda:{ordinal}: peak {bytes_(peak)}, stored {bytes_(stored)}"
            for ordinal, (peak, stored) in peaks.items()
            if peak > stored * (1 + fail_above)
        ]
        if beyond:
            raise RegressionError(f"{'; '.join(beyond)}; allowed: {share(fail_above)} more")
    return MemoryComparison(peaks)


def _peak(delta: MemoryDelta, ordinal: int) -> int:
    return delta.devices[ordinal].peak if ordinal in delta.devices else 0
