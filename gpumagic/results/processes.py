"""The processes that use a device, and those that claim it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, shortened
from gpumagic.render.units import bytes_, spans

#: A narrow terminal drops columns from the last one on.
_COLUMNS = (
    Column("GPU", "right"),
    Column("PID", "right"),
    Column("User", rank=2),
    Column("Memory", "right"),
    Column("Command", least=12),
)
#: The most processes that are shown, those with the most memory; and characters of a command.
_MOST, _COMMAND = 50, 80
_Place = TypeVar("_Place")


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
    #: The program and the script, ``python train.py``, never its arguments.
    command: str | None = None
    #: Whether it is this process; None where NVML's pids cannot be compared with this process's.
    own: bool | None = None
    #: Whether it belongs to the current user; None where it cannot be looked up.
    mine: bool | None = None
    #: The name of its notebook when its kernel started, if it is a kernel of the user's Jupyter;
    #: the path where several have the same name; None where not known.
    notebook: str | None = None

    @property
    def title(self) -> Cell:
        """The notebook or the command; the whole of it on hover only where it is the user's own."""
        text = self.notebook or self.command or DASH
        return Cell(shortened(text, _COMMAND), whole=text if self.own or self.mine else None)


@dataclass(frozen=True)
class Claim:
    """A process that has chosen a device, as the lock that it holds shows (`selection.claims`)."""

    #: None for a process that this system does not list: it is in another container.
    pid: int | None = None
    #: None where the user's name is not known.
    user: str | None = None
    #: The name of its notebook, as in `Process`.
    notebook: str | None = None
    #: Whether it is this process.
    own: bool = False
    #: Whether it belongs to the current user.
    mine: bool = False
    #: The UUID of the MIG instance that it has chosen; None for a whole device.
    instance: str | None = None

    def __str__(self) -> str:
        """Return notebook or process, and the user: ``process 4711 of ann``."""
        if self.own:
            return "this kernel"
        if self.pid is None:
            return "a process outside of this container"
        who = self.notebook or f"process {self.pid}"
        return who if self.mine else f"{who} of {self.user or 'another user'}"


def claim_lines(claims: Mapping[int, Sequence[Claim]]) -> list[Block]:
    """Return a line for each process that claims GPUs, with these; ``claims`` are by index."""
    indexes: dict[Claim, dict[int, None]] = {}
    for index, found in claims.items():
        for claim in found:
            indexes.setdefault(replace(claim, instance=None), {})[index] = None
    return [
        Line.of(f"GPU {spans(found)}: claimed by {claim}.", "dim")
        for claim, found in indexes.items()
    ]


def process_blocks(processes: Mapping[int, Sequence[Process] | None]) -> list[Block]:
    """Return the table of processes, the user's own first; ``processes`` are by GPU's index."""
    listed = [(index, process) for index, found in processes.items() for process in found or ()]
    shown, rest = most_memory(listed)
    shown.sort(key=lambda each: (not (each[1].own or each[1].mine), -(each[1].memory or 0)))
    unlisted = [str(index) for index, found in processes.items() if found is None]
    blocks: list[Block] = []
    if shown:
        blocks += [Grid(_COLUMNS, [_row(*each) for each in shown]), *rest]
    elif len(unlisted) < len(processes):
        blocks.append(Line.of("No process uses a GPU, as far as NVML lists them.", "dim"))
    if unlisted:
        text = f"NVML does not list the processes of GPU {', '.join(unlisted)}."
        blocks.append(Line.of(text, "dim"))
    return blocks


def _row(index: int, process: Process) -> list[Cell]:
    pid = Cell(f"{process.pid} (this kernel)", "strong") if process.own else Cell(str(process.pid))
    return [
        Cell(str(index)),
        pid,
        Cell(process.user or DASH),
        Cell(bytes_(process.memory)),
        process.title,
    ]


def most_memory(
    listed: Sequence[tuple[_Place, Process]],
) -> tuple[list[tuple[_Place, Process]], list[Block]]:
    """Return the processes to show, and a line on the others; each with the place that it has."""
    ordered = sorted(listed, key=lambda each: -(each[1].memory or 0))
    rest = [process for _, process in ordered[_MOST:]]
    size = bytes_(sum(process.memory or 0 for process in rest))
    line = Line.of(f"and {len(rest)} more, with {size} in all", "dim")
    return ordered[:_MOST], [line] if rest else []
