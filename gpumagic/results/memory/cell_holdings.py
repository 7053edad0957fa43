"""The live GPU memory by the cell that allocated it: ``%gpumem cells``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
from gpumagic.render.units import bytes_, share
from gpumagic.results.base import Result
from gpumagic.results.cell_log import cell_number, first_line
from gpumagic.results.memory.holders import NOTHING


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


@dataclass(frozen=True, repr=False)
class CellHoldings(Result):
    """Live GPU memory by the cell that allocated it; the sum is exactly what is allocated."""

    _index = ("device", "cell")

    #: By CUDA ordinal, the largest first.
    devices: Mapping[int, tuple[CellHolding, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _records(self) -> Iterator[Mapping[str, Any]]:
        for ordinal, held in self.devices.items():
            for each in held:
                sizes = {"bytes": each.bytes, "blocks": each.blocks}
                yield {"device": ordinal, "cell": each.number, "source": each.source, **sizes}

    def _blocks(self) -> Iterator[Block]:
        totals = {i: sum(held.bytes for held in of) for i, of in self.devices.items()}
        if not any(self.devices.values()):
            yield NOTHING
        yield Grid.of(
            [(i, held) for i, of in self.devices.items() for held in of],
            Column("Device", lambda of: Styled(f"cuda:{of[0]}", "strong")),
            Figures("Cell", lambda of: "" if of[1].number is None else cell_number(of[1].number)),
            Column("First line", lambda of: first_line(of[1].source), least=16),
            Figures("Memory", lambda of: bytes_(of[1].bytes)),
            Figures("Share", lambda of: _share(of[1], totals[of[0]])),
            Figures("Blocks", lambda of: Styled(str(of[1].blocks), "dim"), rank=1),
        )
        sums = (f"{bytes_(total)} allocated on cuda:{i}" for i, total in totals.items() if total)
        yield from Line.notes(sums)


def _share(held: CellHolding, total: int) -> Styled:
    return Styled(share(held.bytes / total), "dim", held.bytes / total)
