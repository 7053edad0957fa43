"""The processes that hold memory on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled, Text
from gpumagic.render.units import DASH, bytes_, spans
from gpumagic.system.text import shortened

#: The most processes that are shown, those with the most memory.
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
