"""The change of GPU memory by each line of a cell: ``%%gpumem --lines``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpumagic.render.blocks import Block, Figures, Grid, Line, Styled
from gpumagic.results.base import Result
from gpumagic.results.memory.memory_delta import MemoryDelta
from gpumagic.results.source_table import Source


@dataclass(frozen=True)
class LineMemory:
    """The change of one device's memory by all runs of a line. Bytes, exact.

    Functions that the line calls are included.
    """

    #: Change of the bytes held by live tensors.
    change: int = 0
    #: Highest allocated bytes during a run of the line, above the run's start. A statement with a
    #: comprehension in it is one run.
    peak: int = 0


@dataclass(frozen=True)
class SourceLines(Source):
    """The GPU memory of the lines of the cell, or of a function."""

    #: By CUDA ordinal and line number; lines without a change are absent.
    devices: Mapping[int, Mapping[int, LineMemory]] = field(default_factory=dict)
    #: How often each line ran, by its number; ``change`` is the sum over these runs, ``peak`` the
    #: highest.
    runs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class LineReport(Result):
    """The change of GPU memory by each line of a cell and of the named functions."""

    cell: MemoryDelta
    sources: tuple[SourceLines, ...] = ()
    notes: tuple[str, ...] = ()

    _index = ("source", "line", "device")

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield each line with a change. Bytes."""
        for source in self.sources:
            for ordinal, lines in source.devices.items():
                for line, memory in sorted(lines.items()):
                    yield {
                        **{"source": source.name, "line": line, "device": ordinal},
                        "text": source.text[line - source.first].strip(),
                        **vars(memory),
                        "runs": source.runs.get(line),
                    }

    def _blocks(self) -> Iterator[Block]:
        for source in self.sources:
            if not source.runs:
                yield source.nothing()
            for ordinal, lines in source.devices.items():
                on = Styled(f" on cuda:{ordinal}", "dim")
                yield Line.join(Styled(source.name, "strong"), on)
                yield _memory_grid(source, lines)
        yield from self.cell.blocks()


def _memory_grid(source: SourceLines, memory: Mapping[int, LineMemory]) -> Grid:
    highest = max((line.peak for line in memory.values()), default=0) or 1
    # A row's hits and memory.
    items = {
        row: (source.runs.get(row.start), memory.get(row.start)) if len(row) == 1 else None
        for row in source.rows(memory)
    }

    def peak(line: LineMemory) -> Styled:
        return Styled.bytes(line.peak, sign=True, bar=line.peak / highest)

    return source.grid(
        items,
        Figures("Hits", lambda of: Styled("" if of[0] is None else f"{of[0]:,}", "dim"), rank=2),
        Figures("Change", lambda of: Styled.bytes(of[1].change, sign=True) if of[1] else ""),
        Figures("Peak", lambda of: peak(of[1]) if of[1] else ""),
    )
