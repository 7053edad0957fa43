"""A user's notebooks on this machine, with the GPU memory that each holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import ClassVar

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, Style
from gpumagic.render.units import bytes_, spans
from gpumagic.results.base import Result, Series
from gpumagic.results.claims import state_text

_COLUMNS = (
    Column("Notebook", least=16),
    Column("Folder", rank=2, least=12),
    Column("PID", "right", rank=1),
    Column("GPU"),
    Column("Memory", "right"),
    Column("State"),
)


@dataclass(frozen=True)
class Notebook:
    """A notebook of the user with a running kernel."""

    name: str
    #: Its path below the server's folder, and that folder; None without a server.
    path: str | None = None
    folder: str | None = None
    #: None where the kernel's process is not known: it uses no GPU.
    pid: int | None = None
    #: Bytes of device memory by the GPU's index; None where the driver does not report them.
    devices: Mapping[int, int | None] = field(default_factory=dict)
    #: Seconds since its last cell, 0 while one runs; None where not known.
    idle: float | None = None
    #: Whether it is the notebook of this kernel.
    own: bool = False
    #: Whether its GPU memory is parked in host memory; None where not known.
    parked: bool | None = None

    @property
    def location(self) -> str:
        """The whole path as far as it is known, with the notebook's name."""
        path = PurePosixPath(self.folder or "", self.path or self.name)
        return str(path.with_name(self.name))

    @property
    def memory(self) -> int | None:
        """The sum of the bytes on all GPUs; None where one is not known."""
        found = [value for value in self.devices.values() if value is not None]
        return sum(found) if len(found) == len(self.devices) else None


@dataclass(frozen=True)
class NotebookTable(Series[Notebook]):
    """The user's notebooks on this machine, ordered by GPU memory, the most first."""

    items_in: ClassVar[str] = "notebooks"

    notebooks: tuple[Notebook, ...] = ()

    def _blocks(self) -> list[Block]:
        if not self.notebooks:
            return [Line.of("None of your notebooks was found on this machine.", "dim")]
        blocks: list[Block] = [Grid(_COLUMNS, _rows(self.notebooks))]
        if any(not each.own and each.path is not None for each in self):
            line = "Shut one down, and lose its variables: %gpu shutdown NAME"
            blocks.append(Line.of(line, "dim"))
        return blocks

    def __repr__(self) -> str:
        return f"<NotebookTable: {len(self)} notebooks>"


def _state(notebook: Notebook) -> str:
    if notebook.parked:
        return f"parked{state_text(notebook.idle, ', ')}"
    return state_text(notebook.idle)


def _rows(notebooks: tuple[Notebook, ...]) -> list[list[Cell]]:
    """Return the rows; notebooks of the same name are shown by their paths."""
    count = Counter(each.name for each in notebooks)
    return [_row(n, n.name if count[n.name] == 1 else n.path or n.name) for n in notebooks]


def _row(notebook: Notebook, name: str) -> list[Cell]:
    style: Style = "strong" if notebook.own else ""
    memory = bytes_(notebook.memory) if notebook.devices else "none"
    return [
        Cell(f"{name}{' (this one)' if notebook.own else ''}", style),
        Cell(notebook.folder or DASH, "dim"),
        Cell(DASH if notebook.pid is None else str(notebook.pid)),
        Cell(spans(notebook.devices) or DASH),
        Cell(memory, "" if notebook.devices else "dim"),
        Cell(_state(notebook) or DASH),
    ]


@dataclass(frozen=True)
class Shutdown(Result):
    """The outcome of shutting a notebook's kernel down."""

    notebook: Notebook
    #: Whether its server has shut it down.
    done: bool

    def _blocks(self) -> list[Block]:
        name = self.notebook.location
        if not self.done:
            return [Line.of(f"{name} was not shut down.")]
        freed = self.notebook.memory
        freeing = f"; it held {bytes_(freed)} of GPU memory" if freed else ""
        return [Line.of(f"{name} was shut down by its server{freeing}.", "good")]
