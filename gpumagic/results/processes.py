"""The processes that hold memory on a device, and those that have chosen it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled, Text
from gpumagic.render.units import DASH, bytes_, spans
from gpumagic.system.text import shortened
from gpumagic.wording import grouped

#: The most processes that are shown, those with the most memory; and the most claims.
_MOST = 50
#: The most characters of a command.
_LONGEST_COMMAND = 80


@dataclass(frozen=True)
class Process:
    """A process that holds memory on a device, as NVML reports it."""

    pid: int
    #: Bytes of device memory; None where the driver does not report them (WDDM, MIG without
    #: permission).
    memory: int | None = None
    #: None where the process cannot be looked up (ended, another pid namespace, no permission).
    user: str | None = None
    #: The program and the script, ``python train.py``, never its arguments.
    command: str | None = None
    #: Whether it is this process; None where NVML's pids cannot be compared with this process's.
    own: bool | None = None
    #: Whether this process, or a child of it, has started it.
    child: bool = False
    #: Whether it belongs to the current user; None where it cannot be looked up.
    mine: bool | None = None
    #: The name of its notebook when its kernel started, if it is a kernel of the user's Jupyter;
    #: the path where several have the same name; None where not known.
    notebook: str | None = None

    @property
    def title(self) -> Styled:
        """The notebook or the command; the whole of it on hover only where it is the user's own."""
        text = self.notebook or self.command or DASH
        return Styled(
            shortened(text, _LONGEST_COMMAND), whole=text if self.own or self.mine else None
        )


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
    #: How many processes it stands for: the many beyond those that are listed are one claim.
    processes: int = 1

    def __str__(self) -> str:
        """Return notebook or process, and the user: ``process 4711 of ann``."""
        if self.own:
            return "this process"
        if self.pid is None and self.processes > 1:
            return f"{self.processes:,} more processes"
        if self.pid is None:
            return "a process outside of this container"
        who = self.notebook or f"process {self.pid}"
        return who if self.mine else f"{who} of {self.user or 'another user'}"


def claim_lines(claims: Iterable[tuple[Claim, int]]) -> Iterator[Line]:
    """Yield a line for each process that claims GPUs, with their indexes."""
    whole = ((replace(claim, instance=None), index) for claim, index in claims)
    for claim, indexes in [*grouped(whole).items()][:_MOST]:
        yield Line.of(f"GPU {spans(indexes)}: claimed by {claim}.", "dim")


def process_table(by_device: Mapping[int, Sequence[Process] | None]) -> Iterator[Block]:
    """Yield the processes with the most memory, the user's own first; and what is not known.

    ``by_device``: the processes by the index of their device; None where they are not known.
    """
    listed = [(index, each) for index, found in by_device.items() for each in found or ()]
    listed.sort(key=lambda of: -(of[1].memory or 0))
    shown, rest = listed[:_MOST], listed[_MOST:]
    yield Grid.of(
        sorted(shown, key=lambda of: not (of[1].own or of[1].mine)),
        Figures("GPU", lambda of: str(of[0])),
        Figures("PID", lambda of: _pid(of[1])),
        Column("User", lambda of: of[1].user or DASH, rank=2),
        Figures("Memory", lambda of: bytes_(of[1].memory)),
        Column("Command", lambda of: of[1].title, least=12),
    )
    if rest:
        memory = bytes_(sum(process.memory or 0 for _, process in rest))
        yield Line.of(f"and {len(rest)} more, with {memory} in all", "dim")
    unlisted = [index for index, found in by_device.items() if found is None]
    if unlisted:
        yield Line.of(f"NVML does not list the processes of GPU {spans(unlisted)}.", "dim")
    elif not listed:
        yield Line.of("No process uses a GPU, as far as NVML lists them.", "dim")


def _pid(process: Process) -> Text:
    if process.own:
        return Styled(f"{process.pid} (this process)", "strong")
    return f"{process.pid} (its child)" if process.child else str(process.pid)
