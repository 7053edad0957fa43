"""Why memory ran out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpumagic.results.base import Result
from gpumagic.results.devices import Process
from gpumagic.results.holders import Holder


@dataclass(frozen=True)
class Remedy:
    """Something to do about it."""

    #: What to type, or to do.
    what: str
    #: What it brings, and what it costs.
    why: str
    #: Bytes that it brings to the device or the allocator; None where not known.
    gives: int | None = None
    #: Whether that is enough for what was asked; None where not known.
    enough: bool | None = None


@dataclass(frozen=True)
class OutOfMemory(Result):
    """Why an allocation failed. Bytes; None where not known."""

    #: The CUDA ordinal that ran out; None where the exception does not say.
    device: int | None = None
    name: str | None = None
    #: What was asked for, to the two decimals of torch's message.
    requested: int | None = None
    #: The line of the user's that asked: ``In[5] line 3 in forward``; and its source.
    where: str | None = None
    source: str | None = None
    total: int | None = None
    free: int | None = None
    #: What torch's allocator holds, and what live tensors hold of it.
    reserved: int | None = None
    allocated: int | None = None
    #: This process, outside the allocator.
    outside: int | None = None
    #: Other processes together, and each.
    others: int | None = None
    processes: tuple[Process, ...] = ()
    #: The largest block of what is reserved and unused.
    largest_free: int | None = None
    #: What this process allows itself, where less than the device has.
    limit: int | None = None
    #: Whether enough was reserved and unused, but in too small pieces.
    fragmented: bool | None = None
    fragmentation: Literal["expandable", "too-late", ""] = ""
    #: Largest first; locals of the failing functions among them.
    holders: tuple[Holder, ...] = ()
    #: What no name is known to lead to.
    unattributed: int | None = None
    #: What ``%gpumem free`` would give back.
    recoverable: int | None = None
    #: The smallest first.
    remedies: tuple[Remedy, ...] = ()
    #: Whether all objects were looked at; if not, more may lead to what is held than is said.
    complete: bool = True
    notes: tuple[str, ...] = ()

    @property
    def unused(self) -> int | None:
        """Reserved by the allocator and used by no tensor."""
        if self.reserved is None or self.allocated is None:
            return None
        return self.reserved - self.allocated

    def __repr__(self) -> str:
        return f"<OutOfMemory: {self.requested} B on cuda:{self.device}>"
