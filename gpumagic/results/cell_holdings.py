"""Live GPU memory by the cell that allocated it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, dim_lines
from gpumagic.render.units import bytes_, share
from gpumagic.results.base import Result, data_frame
from gpumagic.results.cell_memory import cell_number, first_line
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class CellHolding:
    """The memory that one cell has allocated on one device, as far as it is still allocated."""

    #: The execution number; None where no cell is known, and then ``source`` says where.
    number: int | None
    #: The cell's first line, or the place that allocated the memory.
    source: str
    #: Bytes, as the allocator rounds them.
    bytes: int
    #: The number of allocations.
    blocks: int


@dataclass(frozen=True)
class CellHoldings(Result):
    """Live GPU memory by the cell that allocated it; the sum is exactly what is allocated."""

    #: By CUDA ordinal, the largest first.
    devices: Mapping[int, tuple[CellHolding, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        columns = [
            Column("Device"),
            Column("Cell", "right"),
            Column("First line", least=16),
            Column("Memory", "right"),
            Column("Share", "right"),
            Column("Blocks", "right", rank=1),
        ]
        rows: list[list[Cell]] = []
        for ordinal, held in self.devices.items():
            total = sum(h.bytes for h in held)
            names = [f"cuda:{ordinal}", *[""] * (len(held) - 1)]
            rows += [_row(name, h, total) for name, h in zip(names, held, strict=True)]
            if len(held) > 1:
                blocks = str(sum(h.blocks for h in held))
                rows.append(
                    [
                        *(Cell(""), Cell(""), Cell("allocated", "dim")),
                        *(Cell(bytes_(total), "strong"), Cell(""), Cell(blocks, "dim")),
                    ]
                )
        if not rows:
            return [Line.of("No GPU memory is allocated"), *dim_lines(self.notes)]
        return [Grid(columns, rows), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        total = sum(h.bytes for holdings in self.devices.values() for h in holdings)
        return f"<CellHoldings: {total} B on {plural(len(self.devices), 'device')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each device and cell (needs pandas)."""
        rows = [
            (ordinal, h.number, h.source, h.bytes, h.blocks)
            for ordinal, holdings in self.devices.items()
            for h in holdings
        ]
        columns = ["device", "cell", "source", "bytes", "blocks"]
        return data_frame(rows, columns, index=["device", "cell"], types={"cell": "Int64"})


def _row(device: str, held: CellHolding, total: int) -> list[Cell]:
    part = held.bytes / total
    known = held.number is not None
    return [
        Cell(device, "strong"),
        cell_number(held.number) if known else Cell(""),
        first_line(held.source, "" if known else "dim"),
        Cell(bytes_(held.bytes)),
        Cell(share(part), "dim", bar=part),
        Cell(str(held.blocks), "dim"),
    ]
