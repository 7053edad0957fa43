"""How far a timing can be trusted, and what limited the code: figures, no words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StoppedBy = Literal["precision", "max-time"]


@dataclass(frozen=True)
class Quality:
    """What the repeats say of themselves. Nothing was left out because of it."""

    #: Half the width of the 95 % confidence interval of the median, as a part of the median (GPU
    #: time, or wall time where there is none); None for fewer than 6 repeats.
    precision: float | None
    #: What ended the repeats; None where their number was given.
    stopped_by: StoppedBy | None = None
    #: How much longer the second half of the repeats took than the first, as a part of it; None
    #: where that is less than 2 %, or no more than chance.
    drift: float | None = None
    #: Repeats far outside the others, in seconds per loop.
    outliers: tuple[float, ...] = ()
    #: By ordinal, why the GPU's clock was held down meanwhile, as NVML tells; empty for no reason,
    #: and where NVML tells nothing.
    throttled: dict[int, tuple[str, ...]] | None = None
    #: The L2 cache was emptied before each repeat, bytes by ordinal; None where it was not.
    flushed: dict[int, int] | None = None
    #: The repeats that were asked for, fewer if the run was stopped; None where they end by
    #: themselves.
    asked: int | None = None
