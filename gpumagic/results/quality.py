"""The statistical quality of the repeats of a timing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StoppedBy = Literal["precision", "max-time"]


@dataclass(frozen=True)
class Quality:
    """The quality of the repeats; no repeat is left out because of it."""

    #: Half the width of the 95 % confidence interval of the median, as a part of the median (GPU
    #: time, or wall time where there is none); None for fewer than 6 repeats.
    precision: float | None
    #: What ended the repeats; None where their number was given.
    stopped_by: StoppedBy | None = None
    #: By how much longer the second half of the repeats took than the first, as a part of the
    #: first; None below 2 %, or where it is not significant.
    drift: float | None = None
    #: The times of outliers in seconds per loop.
    outliers: tuple[float, ...] = ()
    #: By ordinal, why the GPU's clock was throttled, as NVML reports it; empty for no reason, and
    #: where NVML reports none.
    throttled: dict[int, tuple[str, ...]] | None = None
    #: The bytes of the L2 cache flushed before each loop, by ordinal; None where it was not.
    flushed: dict[int, int] | None = None
    #: The number of requested repeats; None where precision or time ends them.
    asked: int | None = None
