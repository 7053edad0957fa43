"""The peaks of a cell compared with those of a stored result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, dim_lines
from gpumagic.render.units import bytes_, share
from gpumagic.results.base import Result


@dataclass(frozen=True)
class MemoryComparison(Result):
    """Peaks above the start in bytes, by CUDA ordinal: now and stored."""

    peaks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        columns = (Column("Device"), *(Column(c, "right") for c in ("Peak", "Stored", "Change")))
        rows = [
            (
                Cell(f"cuda:{ordinal}"),
                Cell(bytes_(now)),
                Cell(bytes_(stored)),
                Cell(share((now - stored) / stored, 1, sign=True) if stored else DASH),
            )
            for ordinal, (now, stored) in self.peaks.items()
        ]
        grid = [Grid(columns, rows)] if rows or not self.notes else []
        return [*grid, *dim_lines(self.notes)]
