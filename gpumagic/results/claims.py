"""The claims of GPUs that the processes of a machine publish for each other."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.render.units import rough_seconds


@dataclass(frozen=True)
class Claim:
    """A process that has chosen GPUs, as the machine's registry lists it."""

    #: The UUIDs of the GPUs, or of the MIG instance.
    uuids: tuple[str, ...]
    #: Its number in its own pid namespace.
    pid: int
    #: None where the user's name is not known.
    user: str | None = None
    #: The notebook's name, or the path where several of the user's have the same name; None where
    #: its owner does not publish it.
    notebook: str | None = None
    #: Seconds since its last cell, 0 while one runs; None where not known.
    idle: float | None = None
    #: Whether its GPU memory is parked in host memory; None where not known.
    parked: bool | None = None
    #: Whether it is this process.
    own: bool = False
    #: Whether it belongs to the current user.
    mine: bool = False

    def __str__(self) -> str:
        """Return notebook or process, user and state: ``eval.ipynb of ann, idle 2 h``."""
        who = "this kernel" if self.own else self.notebook or f"process {self.pid}"
        if not self.own and not self.mine:
            who += f" of {self.user}" if self.user else " of another user"
        if self.parked:
            who += ", parked"
        return who if self.own else f"{who}{state_text(self.idle, ', ')}"


def state_text(idle: float | None, before: str = "") -> str:
    """Return ``busy``, or how long a notebook has been idle; empty if not known."""
    if idle is None:
        return ""
    return f"{before}busy" if idle == 0 else f"{before}idle {rough_seconds(idle)}"
