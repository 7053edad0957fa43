"""The change of GPU memory by each line of a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.render.blocks import (
    Block,
    Cell,
    Column,
    Grid,
    Line,
    dim_lines,
    without_empty,
)
from gpumagic.render.source_code import SourceCode
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result, data_frame
from gpumagic.results.folding import folded
from gpumagic.results.memory import MemoryDelta

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LineMemory:
    """The change of one device's memory by all runs of a line. Bytes, exact.

    Functions that the line calls are included.
    """

    #: Change of the bytes held by live tensors.
    change: int = 0
    #: Highest allocated bytes during a run of the line, above the run's start. A statement is one
    #: run, also with a loop in it such as that of a comprehension.
    peak: int = 0


@dataclass(frozen=True)
class SourceLines:
    """The lines of the cell, or of a function."""

    #: ``cell`` or the function's name.
    name: str
    #: The number of the first of ``lines``.
    first: int
    lines: tuple[str, ...]
    #: By CUDA ordinal and line number; lines without a change are absent.
    devices: Mapping[int, Mapping[int, LineMemory]] = field(default_factory=dict)
    #: Whether any of it ran.
    ran: bool = True
    #: Whether there is nothing in it to run.
    empty: bool = False
    #: How often each line ran, by its number; ``change`` is the sum over these runs, ``peak`` the
    #: highest.
    runs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LineReport(Result):
    """The change of GPU memory by each line of a cell and of the named functions."""

    cell: MemoryDelta
    sources: tuple[SourceLines, ...] = ()
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = []
        for source in self.sources:
            if source.empty:
                blocks.append(Line.of(f"{source.name}: nothing to run", "dim"))
            elif not source.ran:
                blocks.append(
                    Line.of(f"{source.name}: was not seen to run in this cell's thread", "dim")
                )
            for ordinal, lines in source.devices.items():
                name = Cell(source.name, "strong")
                blocks.append(Line((name, Cell(f" on cuda:{ordinal}", "dim"))))
                blocks.append(_grid(source, lines))
        return [*blocks, *self.cell._blocks(), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.sources)
        return f"<LineReport: {names or self.cell.error or 'nothing'}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each line with a change (needs pandas). Bytes."""
        rows = [
            (
                s.name,
                line,
                ordinal,
                s.lines[line - s.first].strip(),
                *vars(memory).values(),
                s.runs.get(line),
            )
            for s in self.sources
            for ordinal, lines in s.devices.items()
            for line, memory in sorted(lines.items())
        ]
        figures = ["change", "peak", "runs"]
        index = ["source", "line", "device"]
        types = {"runs": "Int64"}
        return data_frame(rows, [*index, "text", *figures], index=index, types=types)


def _grid(source: SourceLines, lines: Mapping[int, LineMemory]) -> Grid:
    columns = [
        Column("Line", "right"),
        Column("Hits", "right", rank=2),
        Column("Change", "right"),
        Column("Peak", "right"),
        Column("Source", least=36),
    ]
    highest = max((memory.peak for memory in lines.values()), default=0) or 1
    rows = []
    code = SourceCode(source.lines)
    # A file that was edited since may have fewer lines than the code.
    for number in folded(range(source.first, source.first + len(source.lines)), lines):
        if number is None:
            rows.append([*[Cell("")] * 4, Cell("⋯", "dim")])
            continue
        text = Cell.of_code(code, number - source.first)
        memory = lines.get(number)
        count = source.runs.get(number)
        runs = Cell("" if count is None else f"{count:,}", "dim")
        if memory is None:
            rows.append([Cell(str(number), "dim"), runs, *[Cell("")] * 2, text])
            continue
        rows.append(
            [
                Cell(str(number), "dim"),
                runs,
                Cell(bytes_(memory.change, sign=True), "" if memory.change else "dim"),
                Cell(
                    bytes_(memory.peak, sign=True),
                    "" if memory.peak else "dim",
                    memory.peak / highest,
                ),
                text,
            ]
        )
    return without_empty(columns, rows)
