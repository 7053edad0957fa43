"""The logs of the cells of a session: the GPU memory that each changed, the time it took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, TypeAlias, TypeVar

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Style, Styled, Text
from gpumagic.render.units import DASH, at_most, bytes_, cpu_seconds, seconds
from gpumagic.results.base import Result, Series
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta, change_line, only_changed
from gpumagic.results.timing.cuda_timing import not_seen
from gpumagic.wording import plural

#: The most cells that are shown of the log of memory, the newest.
_NEWEST = 60
#: The most cells that are shown of the log of times, those of the longest wall time.
_SLOWEST = 20
#: The most characters of a cell's first line.
_LONGEST = 44
#: The source of what changed between two cells.
BETWEEN_CELLS = "(between cells)"
_Entry = TypeVar("_Entry")


@dataclass(frozen=True, repr=False)
class _Log(Series[_Entry]):
    """What was measured of each cell that ended while a log was on: the newest 10,000, in order."""

    _sequence = "cells"

    cells: tuple[_Entry, ...] = ()
    #: Whether the log is on.
    watching: bool = False

    def _nothing(self, magic: str, done: str) -> str:
        """Return that the log is empty, and why."""
        if self.watching:
            return f"No cell has been {done} since '{magic} on'"
        return f"No cell has been {done} yet: '{magic} on' starts the log"


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
class CellLog(_Log[CellMemory]):
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
            yield Line.of(self._nothing("%gpumem", "measured"))
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


def first_line(source: str, style: Style = "", *, failed: bool = False) -> Styled:
    """Return a cell's first line as a table shows it."""
    return Styled.cut(source, _LONGEST, "bad" if failed else style)


def cell_number(number: int | None, *, failed: bool = False) -> Styled:
    """Return a cell's execution number as a table shows it: ``[3]``, ``✗ [3]`` if it failed."""
    text = DASH if number is None else f"[{number}]"
    return Styled(f"✗ {text}", "bad") if failed else Styled(text, "dim")


@dataclass(frozen=True, repr=False)
class CellTiming(Result):
    """The times of one cell, measured without synchronising within it."""

    #: The execution number; None for a cancelled cell.
    cell: int | None
    #: The cell's first line.
    source: str
    #: Until the cell's code and its GPU work had finished.
    wall: float
    #: Until the cell's Python code had returned.
    host: float
    #: CPU time of this process, all threads.
    cpu: float
    #: None where CUDA was not in use, or for the reason in ``note``.
    gpu: float | None = None
    #: Of the devices with a sign of work.
    per_device: Mapping[int, float] = field(default_factory=dict)
    #: Whether ``gpu`` and ``wall`` are upper bounds; and for how long the GPU has surely worked.
    gpu_at_most: bool = False
    gpu_at_least: float | None = None
    wall_at_most: bool = False
    #: Whether there was a sign of GPU work; code that waits for the GPU leaves none.
    used_gpu: bool = False
    #: Whether the cell raised or was interrupted.
    failed: bool = False
    note: str | None = None

    @property
    def wall_text(self) -> str:
        """The wall time as it is shown."""
        return at_most(self.wall, self.wall_at_most)

    def _blocks(self) -> list[Block]:
        parts = []
        if self.gpu is not None and self.used_gpu:
            gpu = f"GPU {at_most(self.gpu, self.gpu_at_most)}"
            if self.gpu_at_most and self.gpu_at_least:
                gpu += f", at least {seconds(self.gpu_at_least)}"
            if len(self.per_device) > 1:
                times = (f"cuda:{i} {at_most(t, True)}" for i, t in self.per_device.items())
                gpu += f" ({', '.join(times)})"
            parts.append(gpu)
        parts += [f"wall {self.wall_text}", f"CPU {cpu_seconds(self.cpu)}"]
        if self.gpu is not None and not self.used_gpu:
            parts.append(not_seen(self.gpu))
        if self.note is not None:
            parts.append(self.note)
        return [Line.of(" · ".join(parts), "dim")]


@dataclass(frozen=True, repr=False)
class TimingLog(_Log[CellTiming]):
    """The time of each cell that ended while ``%cudatime on`` was on, oldest first."""

    _index = ("cell",)

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield each cell, with its time on each device. Seconds."""
        for cell in self.cells:
            figures = dict(vars(cell))
            yield figures | {f"cuda:{i}": time for i, time in figures.pop("per_device").items()}

    def _blocks(self) -> Iterator[Block]:
        if not self.cells:
            yield Line.of(self._nothing("%cudatime", "timed"), "dim")
            return
        shown = sorted(self.cells, key=lambda cell: -cell.wall)[:_SLOWEST]
        longest = shown[0].wall or 1.0
        used = [cell for cell in self.cells if cell.used_gpu]
        gpu = [cell.gpu for cell in used if cell.gpu is not None]
        yield Line.join(
            f"{plural(len(self), 'cell')}: ",
            _total("wall", [cell.wall for cell in self], any(cell.wall_at_most for cell in self)),
            f", CPU {cpu_seconds(fsum(cell.cpu for cell in self))}; ",
            f"{len(used):,} with a sign of GPU work: ",
            _total("GPU", gpu, any(cell.gpu_at_most for cell in used)),
        )
        yield Grid.of(
            shown,
            Figures("Cell", lambda cell: cell_number(cell.cell, failed=cell.failed)),
            Figures("Wall", lambda cell: Styled(cell.wall_text, "strong", cell.wall / longest)),
            Figures("GPU", _gpu),
            Figures("CPU", lambda cell: cpu_seconds(cell.cpu), rank=1),
            Column("First line", _first_line, rank=2, least=16),
        )
        if len(self) > len(shown):
            note = f"the {_SLOWEST} longest are shown; .to_pandas() has all {len(self):,}"
            yield Line.of(note, "dim")


def _first_line(cell: CellTiming) -> Styled:
    return first_line(cell.source, "dim", failed=cell.failed)


def _gpu(cell: CellTiming) -> Styled:
    text = at_most(cell.gpu, cell.gpu_at_most)
    if cell.gpu is None or cell.used_gpu:
        return Styled(text)
    return Styled(f"none seen ({text})", "dim")


def _total(name: str, times: Sequence[float], is_bound: bool) -> Styled:
    """Return a sum of times; a dash where there are none."""
    return Styled(f"{name} {at_most(fsum(times) if times else None, is_bound)}", "strong")
