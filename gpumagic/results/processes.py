"""The processes that use a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpumagic.render.blocks import DASH, Block, Cell, Line, few, shortened
from gpumagic.render.units import bytes_
from gpumagic.results.claims import state_text

#: The most rows that are shown, those with the most memory.
_ROWS = 50
_LONGEST_COMMAND = 80
#: At most so many pids of equal processes are shown.
_PIDS = 1


@dataclass(frozen=True)
class Process:
    """A process that holds memory on a device, as NVML reports it."""

    pid: int
    #: Bytes of device memory; None where the driver does not report them (WDDM, MIG without
    #: permission).
    memory: int | None = None
    #: ``"compute"`` or ``"graphics"``.
    kind: str = "compute"
    #: None where the process cannot be looked up (ended, another pid namespace, no permission).
    user: str | None = None
    #: The program and the script, ``python train.py``; arguments never of other users' processes.
    command: str | None = None
    #: Whether it is this process; None where NVML's pids cannot be compared with this process's.
    own: bool | None = None
    #: Whether it belongs to the current user; None where it cannot be looked up.
    mine: bool | None = None
    #: The name of its notebook, if it is a Jupyter kernel; the path where several of the user's
    #: have the same name; None where not known.
    notebook: str | None = None
    #: Seconds since the notebook's last cell, 0 while one runs; None where not known.
    idle: float | None = None
    #: The folder of the notebook's Jupyter server; only for the current user's.
    folder: str | None = None
    #: Whether its GPU memory is parked in host memory; None where not known.
    parked: bool | None = None


@dataclass(frozen=True)
class ProcessRow:
    """A row of a table: a process, or several on a device that differ in nothing but their pid."""

    #: The cells before those of the process, as text: host, GPU, engine.
    place: tuple[str, ...]
    processes: tuple[Process, ...]

    @property
    def first(self) -> Process:
        return self.processes[0]

    @property
    def memory(self) -> int | None:
        """Return the bytes of all of them; None where one is not known."""
        known = [process.memory for process in self.processes if process.memory is not None]
        return sum(known) if len(known) == len(self.processes) else None

    @property
    def pids(self) -> Cell:
        return few([str(process.pid) for process in self.processes], _PIDS)

    @property
    def command(self) -> Cell:
        """The notebook or the command; the whole of it on hover only where it is the user's own."""
        process, count = self.first, len(self.processes)
        times = f"{count} × " if count > 1 else ""
        text, state = process.command or DASH, ", parked" if process.parked else ""
        if process.notebook is not None:
            text = f"{process.notebook}{f' in {process.folder}' if process.folder else ''}"
            state += state_text(process.idle, ", ")
        shown = f"{times}{shortened(text, _LONGEST_COMMAND)}{state}"
        whole = f"{times}{text}{state}" if process.own or process.mine else None
        return Cell(shown, whole=whole)


def process_rows(listed: Iterable[tuple[tuple[str, ...], Process]]) -> list[ProcessRow]:
    """Return the rows of processes, each with its place; those that look equal share one.

    Kernels have a row each, and so have processes of which nothing is known.
    """
    equal: dict[object, list[Process]] = {}
    places: dict[object, tuple[str, ...]] = {}
    for place, process in listed:
        key: object = (place, process.user, process.kind, process.command, process.mine)
        key = (key, process.parked)
        if process.own or process.notebook is not None or process.command is None:
            key = (place, process.pid, len(equal))
        equal.setdefault(key, []).append(process)
        places[key] = place
    return [ProcessRow(places[key], tuple(found)) for key, found in equal.items()]


def most_memory(listed: Sequence[ProcessRow]) -> tuple[list[ProcessRow], list[Block]]:
    """Return the rows to show, in their order, and a line on the processes of the rest."""
    if len(listed) <= _ROWS:
        return list(listed), []
    order = sorted(range(len(listed)), key=lambda place: -(listed[place].memory or 0))
    shown, rest = {*order[:_ROWS]}, [listed[place] for place in order[_ROWS:]]
    number = sum(len(row.processes) for row in rest)
    size = bytes_(sum(row.memory or 0 for row in rest))
    line = Line.of(f"and {number} more, with {size} in all", "dim")
    return [row for place, row in enumerate(listed) if place in shown], [line]


def own_first(listed: Sequence[ProcessRow]) -> list[ProcessRow]:
    """Return the rows: the user's own first, then by memory, the most first."""
    return sorted(
        listed, key=lambda row: (not (row.first.own or row.first.mine), -(row.memory or 0))
    )
