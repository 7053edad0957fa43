"""The log of ``%cudatime on``: the time that each cell took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
from gpumagic.render.units import at_most, cpu_seconds, seconds
from gpumagic.results.base import Result
from gpumagic.results.cell_log import Log, cell_number, first_line
from gpumagic.results.timing.cuda_timing import not_seen
from gpumagic.wording import plural

#: The most cells that are shown, those of the longest wall time.
_SLOWEST = 20


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
class TimingLog(Log[CellTiming]):
    """The time of each cell that ended while ``%cudatime on`` was on, oldest first."""

    _index = ("cell",)

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield each cell, with its time on each device. Seconds."""
        for cell in self.cells:
            figures = dict(vars(cell))
            yield figures | {f"cuda:{i}": time for i, time in figures.pop("per_device").items()}

    def _blocks(self) -> Iterator[Block]:
        if not self.cells:
            yield Line.of(self.nothing("%cudatime", "timed"), "dim")
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
