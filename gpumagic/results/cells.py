"""GPU memory over the cells of a session, and by the cell that allocated it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from gpumagic.results.base import Result, Series
from gpumagic.results.memory import DeviceMemoryDelta
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class CellMemory(Result):
    """What one cell did to GPU memory, and what came to pass since the cell before it."""

    #: The execution number; None for a cell that a front end ran outside the history.
    number: int | None
    #: The cell's first line.
    source: str
    #: Wall time.
    seconds: float
    #: One for each device that torch has used.
    devices: Mapping[int, DeviceMemoryDelta] = field(default_factory=dict)
    #: Whether the cell raised or was interrupted.
    failed: bool = False

    @property
    def changed(self) -> Mapping[int, DeviceMemoryDelta]:
        """The devices whose memory the cell touched."""
        return {
            ordinal: d
            for ordinal, d in self.devices.items()
            if d.allocated or d.reserved or d.peak or d.ooms or d.retries
        }

    def __repr__(self) -> str:
        inner = ", ".join(f"{i}: {d.allocated:+d} B" for i, d in self.changed.items())
        return f"<CellMemory [{self.number}] {inner or 'no change'}>"


@dataclass(frozen=True)
class CellLog(Series[CellMemory]):
    """The cells that were watched, oldest first."""

    items_in: ClassVar[str] = "cells"

    cells: tuple[CellMemory, ...] = ()
    #: How many older cells have been forgotten.
    forgotten: int = 0
    #: Bytes that the process may hold, by CUDA ordinal.
    limits: Mapping[int, int] = field(default_factory=dict)
    #: Whether cells are being watched now.
    watching: bool = False

    def __repr__(self) -> str:
        return f"<CellLog: {plural(len(self), 'cell')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row for each cell and device (needs pandas). Bytes and seconds.

        ``peak`` is above the cell's start. A cell before torch used a device has no row.
        """
        import pandas

        figures = [f.name for f in dataclasses.fields(DeviceMemoryDelta)]
        rows = [
            [cell.number, cell.source, cell.seconds, cell.failed, ordinal]
            + [getattr(delta, name) for name in figures]
            for cell in self.cells
            for ordinal, delta in cell.devices.items()
        ]
        columns = ["cell", "source", "seconds", "failed", "device", *figures]
        frame = pandas.DataFrame(rows, columns=columns)
        # A cell may have no number.
        return frame.astype({"cell": "Int64"}).set_index(["cell", "device"])


@dataclass(frozen=True)
class CellHolding:
    """What one cell has allocated and is still allocated on one device."""

    #: The execution number; None where it is not known, see ``source``.
    number: int | None
    #: The cell's first line, or what stands in its place.
    source: str
    #: Bytes, as the allocator rounds them.
    bytes: int
    #: The number of allocations.
    blocks: int


@dataclass(frozen=True)
class CellHoldings(Result):
    """Live GPU memory by the cell that allocated it; adds up to what is allocated, to the byte."""

    #: By CUDA ordinal, the largest first.
    devices: Mapping[int, tuple[CellHolding, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        total = sum(h.bytes for holdings in self.devices.values() for h in holdings)
        return f"<CellHoldings: {total} B on {plural(len(self.devices), 'device')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row for each device and cell (needs pandas)."""
        import pandas

        rows = [
            (ordinal, h.number, h.source, h.bytes, h.blocks)
            for ordinal, holdings in self.devices.items()
            for h in holdings
        ]
        frame = pandas.DataFrame(rows, columns=["device", "cell", "source", "bytes", "blocks"])
        return frame.astype({"cell": "Int64"}).set_index(["device", "cell"])
