"""The times of the cells of a session, in seconds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, dim_lines
from gpumagic.render.units import cpu_seconds, seconds
from gpumagic.results.base import Result, Series, data_frame
from gpumagic.results.cell_memory import cell_number, first_line
from gpumagic.results.timing import at_most
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

#: The most cells of a log that are shown, the longest.
_SHOWN = 20


@dataclass(frozen=True)
class CellTiming(Result):
    """The times of one cell, measured without synchronising within it."""

    #: The execution number; None for a cell that a front end ran outside the history.
    cell: int | None
    #: The cell's first line.
    source: str
    #: Until the cell's code and its GPU work had finished.
    wall: float
    #: Until the cell's Python code had returned.
    host: float
    #: CPU time of this process, all threads.
    cpu: float
    #: None where no GPU work of the cell was observed, or for the reason in ``note``.
    gpu: float | None = None
    per_device: Mapping[int, float] = field(default_factory=dict)
    #: True if ``gpu`` is an upper bound: the GPU had finished when the code returned.
    gpu_at_most: bool = False
    #: Whether GPU work of the cell was observed.
    used_gpu: bool = False
    #: Whether the cell raised or was interrupted.
    failed: bool = False
    note: str | None = None

    def _blocks(self) -> list[Block]:
        parts = []
        if self.used_gpu:
            devices = ", ".join(f"cuda:{i} {seconds(t)}" for i, t in self.per_device.items())
            several = f" ({devices})" if len(self.per_device) > 1 else ""
            parts.append(f"GPU {at_most(self.gpu, is_bound=self.gpu_at_most)}{several}")
        parts += [f"wall {seconds(self.wall)}", f"CPU {cpu_seconds(self.cpu)}"]
        if self.note is not None:
            parts.append(self.note)
        return [Line.of(" · ".join(parts), "dim")]

    def __repr__(self) -> str:
        gpu = "-" if self.gpu is None else f"{self.gpu:.6g} s"
        return f"<CellTiming [{self.cell}] gpu {gpu}, wall {self.wall:.6g} s>"


@dataclass(frozen=True)
class TimingLog(Series[CellTiming]):
    """The time of each cell that ended while ``%cudatime on`` was on, oldest first."""

    items_in: ClassVar[str] = "cells"

    cells: tuple[CellTiming, ...] = ()
    #: How many older cells were dropped from the log.
    forgotten: int = 0
    #: Whether ``%cudatime on`` is in effect.
    watching: bool = False

    @property
    def wall(self) -> float:
        """The sum over all cells."""
        return math.fsum(cell.wall for cell in self.cells)

    @property
    def cpu(self) -> float:
        """The sum over all cells."""
        return math.fsum(cell.cpu for cell in self.cells)

    @property
    def gpu(self) -> float | None:
        """The sum over the cells whose GPU time is known; None if there is none."""
        known = [cell.gpu for cell in self.cells if cell.gpu is not None]
        return math.fsum(known) if known else None

    @property
    def gpu_at_most(self) -> bool:
        """Whether one of the GPU times is an upper bound."""
        return any(cell.gpu_at_most for cell in self.cells)

    def _blocks(self) -> list[Block]:
        if not self.cells:
            hint = "none has ended since" if self.watching else "'%cudatime on' starts the log"
            return [Line.of(f"No cell has been timed yet: {hint}", "dim")]
        longest = sorted(self.cells, key=lambda cell: -cell.wall)[:_SHOWN]
        columns = (
            Column("Cell", "right"),
            Column("Wall", "right"),
            Column("GPU", "right"),
            Column("CPU", "right", rank=1),
            Column("First line", rank=2, least=16),
        )
        rows = [_row(cell, longest[0].wall) for cell in longest]
        rest = []
        if len(self) > len(longest):
            rest.append(f"the {_SHOWN} longest are shown; .to_pandas() has all {len(self):,}")
        if self.forgotten:
            rest.append(f"{plural(self.forgotten, 'older cell')} dropped from the log")
        return [_sum(self), Grid(columns, rows), *dim_lines(rest)]

    def __repr__(self) -> str:
        return f"<TimingLog: {plural(len(self), 'cell')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a cell, a column a device (needs pandas). Seconds."""
        figures = [f.name for f in dataclasses.fields(CellTiming) if f.name != "per_device"]
        devices = sorted({ordinal for cell in self.cells for ordinal in cell.per_device})
        rows = [
            [getattr(cell, name) for name in figures] + [cell.per_device.get(i) for i in devices]
            for cell in self.cells
        ]
        names = [f"cuda:{i}" for i in devices]
        types = {"cell": "Int64", **dict.fromkeys(("gpu", *names), float)}
        return data_frame(rows, [*figures, *names], index="cell", types=types)


def _sum(result: TimingLog) -> Line:
    used = sum(cell.used_gpu for cell in result)
    gpu = at_most(result.gpu, is_bound=result.gpu_at_most)
    return Line(
        (
            Cell(f"{plural(len(result), 'cell')}, {used:,} with GPU work: "),
            Cell(f"wall {seconds(result.wall)}, GPU {gpu}", "strong"),
            Cell(f", CPU {cpu_seconds(result.cpu)}"),
        )
    )


def _row(cell: CellTiming, longest: float) -> tuple[Cell, ...]:
    return (
        cell_number(cell.cell, failed=cell.failed),
        Cell(seconds(cell.wall), "strong", cell.wall / longest if longest else None),
        Cell(at_most(cell.gpu, is_bound=cell.gpu_at_most)),
        Cell(cpu_seconds(cell.cpu)),
        first_line(cell.source, "bad" if cell.failed else "dim"),
    )
