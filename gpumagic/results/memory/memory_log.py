"""The log of ``%gpumem on``: the GPU memory that each cell changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled, Text
from gpumagic.render.units import DASH, bytes_, seconds
from gpumagic.results.base import Result
from gpumagic.results.cell_log import Log, cell_number, first_line
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta, change_line, only_changed
from gpumagic.wording import plural

#: The most cells that are shown, the newest.
_NEWEST = 60
#: The source of what changed between two cells.
BETWEEN_CELLS = "(between cells)"


@dataclass(frozen=True, repr=False)
class CellMemory(Result):
    """The change of GPU memory by one cell; or between two, by threads, tasks and widgets."""

    #: The execution number; None for what ran between cells, and for a cancelled cell.
    number: int | None
    #: The cell's first line, or `BETWEEN_CELLS`.
    source: str
    #: Wall time.
    seconds: float
    #: One for each device that torch has used.
    devices: Mapping[int, DeviceMemoryDelta] = field(default_factory=dict)
    #: Whether the cell raised or was interrupted.
    failed: bool = False

    @property
    def changed(self) -> Mapping[int, DeviceMemoryDelta]:
        """The devices whose memory changed or peaked during the cell."""
        return only_changed(self.devices)

    def _blocks(self) -> list[Block]:
        return [change_line(self.changed)]


#: A cell with the ordinal of a device that it changed, and the change; None where there is none.
_Row: TypeAlias = "tuple[CellMemory, int | None, DeviceMemoryDelta | None]"


@dataclass(frozen=True, repr=False)
class CellLog(Log[CellMemory]):
    """The memory of each cell that ended while ``%gpumem on`` was on, oldest first."""

    _index = ("cell", "device")

    #: Bytes that the process may reserve, by CUDA ordinal.
    limits: Mapping[int, int] = field(default_factory=dict)

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield each cell's change by device. Bytes, seconds; ``peak`` is above the cell's start.

        A cell before torch used a device has no row.
        """
        for cell in self.cells:
            for ordinal, delta in cell.devices.items():
                figures = {**vars(cell), "cell": cell.number, "device": ordinal, **vars(delta)}
                yield {n: value for n, value in figures.items() if n not in ("number", "devices")}

    def _blocks(self) -> Iterator[Block]:
        if not self.cells:
            yield Line.of(self.nothing("%gpumem", "measured"))
        # A cell has a row for each device that it changed; one if there is none.
        rows: list[_Row] = []
        for cell in self.cells[-_NEWEST:]:
            rows += [(cell, *each) for each in cell.changed.items()] or [(cell, None, None)]
        several = len({i for cell in self for i in cell.changed}) > 1
        yield Grid.of(
            rows,
            Figures("Cell", lambda row: cell_number(row[0].number, failed=row[0].failed)),
            # Needed where a cell has rows for several devices.
            Column("Device", _device, rank=0 if several else 1),
            Figures("Change", _of_change(lambda d: Styled.bytes(d.allocated, sign=True))),
            Figures("Peak above start", _of_change(lambda d: Styled.bytes(d.peak, sign=True))),
            Figures("Allocated now", _of_change(lambda d: bytes_(d.allocated_now)), rank=2),
            Figures("Time", lambda row: seconds(row[0].seconds), rank=3),
            Column(
                "First line", lambda row: first_line(row[0].source, failed=row[0].failed), least=16
            ),
            dim=lambda _: True,
        )
        if len(self) > _NEWEST:
            note = f"{plural(len(self) - _NEWEST, 'earlier cell')} not shown here; -o returns all"
            yield Line.of(note, "dim")


def _device(row: _Row) -> Text:
    _, ordinal, delta = row
    if delta is None:
        return DASH
    name = f"cuda:{ordinal}"
    return Styled(f"{name} out of memory", "bad") if delta.ooms else Styled(name)


def _of_change(text: Callable[[DeviceMemoryDelta], Text]) -> Callable[[_Row], Text]:
    """Return the column of a change's figure: a dash where a cell changed nothing."""
    return lambda row: DASH if row[2] is None else text(row[2])
