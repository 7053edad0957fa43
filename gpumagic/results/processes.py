"""The processes that use a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpumagic.render.blocks import DASH, Block, Line, shortened
from gpumagic.render.units import bytes_
from gpumagic.results.claims import state_text

#: The most processes that have a row, those with the most memory.
_ROWS = 50
_LONGEST_COMMAND = 80

_Row = TypeVar("_Row", bound="tuple[Any, ...]")


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
    #: The name of its notebook, if it is a Jupyter kernel; None where not known.
    notebook: str | None = None
    #: Seconds since the notebook's last cell, 0 while one runs; None where not known.
    idle: float | None = None
    #: The folder of the notebook's Jupyter server; only for the current user's.
    folder: str | None = None


def most_memory(listed: Sequence[_Row]) -> tuple[list[_Row], list[Block]]:
    """Return the rows with the most memory, in their order, and a line on the rest.

    The last item of each row is its process.
    """
    if len(listed) <= _ROWS:
        return list(listed), []
    order = sorted(range(len(listed)), key=lambda place: -(listed[place][-1].memory or 0))
    shown = {*order[:_ROWS]}
    rest = sum(listed[place][-1].memory or 0 for place in order[_ROWS:])
    line = Line.of(f"and {len(listed) - _ROWS} more, with {bytes_(rest)} in all", "dim")
    return [row for place, row in enumerate(listed) if place in shown], [line]


def own_first(listed: Sequence[_Row]) -> list[_Row]:
    """Return the rows sorted: the current user's first, then by memory, the most first.

    The last item of each row is its process.
    """
    return sorted(
        listed,
        key=lambda row: (not (row[-1].own or row[-1].mine), -(row[-1].memory or 0)),
    )


def short_command(process: Process) -> str:
    """Return a process's notebook, or its command, as a table shows it."""
    if process.notebook is not None:
        folder = f" in {process.folder}" if process.folder else ""
        state = state_text(process.idle, ", ")
        return f"{shortened(f'{process.notebook}{folder}', _LONGEST_COMMAND)}{state}"
    return shortened(process.command or DASH, _LONGEST_COMMAND)
