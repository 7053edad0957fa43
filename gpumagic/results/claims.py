"""The processes that have chosen a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpumagic.render.blocks import Line
from gpumagic.render.units import spans
from gpumagic.wording import grouped, plural

#: The most processes that are shown.
_MOST = 50


@dataclass(frozen=True)
class Claim:
    """A process that has chosen a device, as the lock that it holds shows (`selection.claims`)."""

    #: None for a process that this system does not list: it is in another container.
    pid: int | None = None
    #: None where the user's name is not known.
    user: str | None = None
    #: The name of its notebook, as in `processes.Process`.
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
    found = [*grouped(whole).items()]
    for claim, indexes in found[:_MOST]:
        yield Line.of(f"GPU {spans(indexes)}: claimed by {claim}.", "dim")
    if more := found[_MOST:]:
        yield Line.of(f"and {plural(len(more), 'more claim')}", "dim")
