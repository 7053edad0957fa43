"""The claims by which the processes of a machine tell each other which GPUs they have chosen."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.render.units import rough_seconds


@dataclass(frozen=True)
class Claim:
    """A process that has chosen GPUs, as the machine's registry lists it."""

    #: The UUIDs of the GPUs, or the MIG instance.
    uuids: tuple[str, ...]
    #: In the process's own pid namespace.
    pid: int
    #: None where the user's name is not known.
    user: str | None = None
    #: The notebook's name; None where its owner does not publish it.
    notebook: str | None = None
    #: Seconds since its last cell, 0 while one runs; None where that is not known.
    idle: float | None = None
    #: Whether its GPU memory is parked in host memory; None where that is not known.
    parked: bool | None = None
    #: Whether it is this process.
    own: bool = False
    #: Whether it belongs to the user who asks.
    mine: bool = False

    def __str__(self) -> str:
        """Return who claims the GPUs: ``eval.ipynb (ann), idle 2 h``."""
        who = "this kernel" if self.own else self.notebook or f"process {self.pid}"
        if not self.own and not self.mine:
            who += f" of {self.user}" if self.user else " of another user"
        if self.parked:
            who += ", parked"
        return who if self.own else f"{who}{state_text(self.idle, ', ')}"


def state_text(idle: float | None, before: str = "") -> str:
    """Return whether a notebook is busy, or for how long it has been idle; empty if not known."""
    if idle is None:
        return ""
    return f"{before}busy" if idle == 0 else f"{before}idle {rough_seconds(idle)}"
