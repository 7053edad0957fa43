"""How long the cells of a session took."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from gpumagic.results.base import Result, Series
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class CellTiming(Result):
    """How long one cell took, seen without disturbing it. Seconds."""

    #: The execution number; None for a cell that a front end ran outside the history.
    cell: int | None
    #: The cell's first line.
    source: str
    #: Until everything, the cell's GPU work included, was done.
    wall: float
    #: Until the cell's Python code had returned.
    host: float
    #: CPU time of this process, all threads.
    cpu: float
    #: None where the cell showed no sign of GPU work, or ``note`` says why.
    gpu: float | None = None
    per_device: Mapping[int, float] = field(default_factory=dict)
    #: True if ``gpu`` is an upper bound: the GPU was done as soon as the code had returned.
    gpu_at_most: bool = False
    #: Whether there was a sign of GPU work.
    used_gpu: bool = False
    #: Whether the cell raised or was interrupted.
    failed: bool = False
    note: str | None = None

    def __repr__(self) -> str:
        gpu = "-" if self.gpu is None else f"{self.gpu:.6g} s"
        return f"<CellTiming [{self.cell}] gpu {gpu}, wall {self.wall:.6g} s>"


@dataclass(frozen=True)
class TimingLog(Series[CellTiming]):
    """The cells that were timed, oldest first."""

    items_in: ClassVar[str] = "cells"

    cells: tuple[CellTiming, ...] = ()
    #: How many older cells have been forgotten.
    forgotten: int = 0
    #: Whether cells are being timed now.
    watching: bool = False

    @property
    def wall(self) -> float:
        """Seconds of all cells together."""
        return math.fsum(cell.wall for cell in self.cells)

    @property
    def cpu(self) -> float:
        return math.fsum(cell.cpu for cell in self.cells)

    @property
    def gpu(self) -> float | None:
        """Seconds of all cells whose GPU time is known; None if there is none."""
        known = [cell.gpu for cell in self.cells if cell.gpu is not None]
        return math.fsum(known) if known else None

    @property
    def gpu_at_most(self) -> bool:
        """Whether an upper bound is among the GPU times."""
        return any(cell.gpu_at_most for cell in self.cells)

    def __repr__(self) -> str:
        return f"<TimingLog: {plural(len(self), 'cell')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a cell, and a column a device (needs pandas). Seconds."""
        import pandas

        figures = [f.name for f in dataclasses.fields(CellTiming) if f.name != "per_device"]
        devices = sorted({ordinal for cell in self.cells for ordinal in cell.per_device})
        rows = [
            [getattr(cell, name) for name in figures] + [cell.per_device.get(i) for i in devices]
            for cell in self.cells
        ]
        frame = pandas.DataFrame(rows, columns=[*figures, *(f"cuda:{i}" for i in devices)])
        seconds = dict.fromkeys(("gpu", *(f"cuda:{i}" for i in devices)), float)
        return frame.astype({"cell": "Int64", **seconds}).set_index("cell")
