"""The report on an allocation that failed: what is short, what held the memory, what helps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gpumagic.render.blocks import Block, Line, Styled
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result
from gpumagic.results.memory.holders import GARBAGE, NO_VARIABLE, Holder, holder_table

#: What ``%gpumem free`` gives back, and why it helps to free a variable by name.
_BY_NOTEBOOK = "what the failed functions and the outputs hold; %debug has nothing to show then"
_MADE_ANEW = "the cell makes it anew beside the last one"


@dataclass(frozen=True, repr=False)
class OutOfMemory(Result):
    """The report on an allocation that failed. Bytes; None where not known."""

    #: The CUDA ordinal; None where the exception does not name it.
    device: int | None = None
    name: str | None = None
    #: The requested bytes, to the two decimals of torch's message; see ``rounded_by``.
    requested: int | None = None
    #: The user's line that failed: ``In[5] line 3 in forward``; and its source.
    where: str | None = None
    source: str | None = None
    total: int | None = None
    #: When it failed, as the two below.
    free: int | None = None
    #: Reserved by torch's allocator, and the part that live tensors held.
    reserved: int | None = None
    allocated: int | None = None
    #: What is allocated now, where that is less.
    allocated_now: int | None = None
    #: Of this process outside torch's allocator, and of other processes.
    outside: int | None = None
    others: int | None = None
    #: What torch's allocator may reserve, where that is less than the device's memory.
    limit: int | None = None
    #: Largest first, with the variables of the failed functions.
    holders: tuple[Holder, ...] = ()
    #: Not referenced by any known variable.
    unattributed: int | None = None
    #: Of this, in reference cycles that Python's collector has not come to.
    garbage: int = 0
    #: What ``%gpumem free`` would give back.
    recoverable: int | None = None
    #: The variable that was to be assigned anew and holds enough; what it and `recoverable` are.
    replaced: str | None = None
    with_replaced: int | None = None
    #: The environment variable that helps where enough is reserved and unused, in small pieces.
    fragmented: str | None = None
    #: The bytes by which the request may have been more, or less, than ``requested``.
    rounded_by: int = 0
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> int | None:
        """The bytes that are surely enough; None where not known, or the request did fit."""
        if self.requested is None or self.free is None or self.fragmented:
            return None
        free = self.free
        if self.limit is not None and self.reserved is not None:
            # Negative where the process is over its limit: so much must be freed first.
            free = min(free, self.limit - self.reserved)
        short = self.requested - free
        return short + self.rounded_by if short > 0 else None

    def _missing_text(self) -> str:
        if self.missing is None:
            return ""
        least = self.missing - 2 * self.rounded_by
        if bytes_(least) == bytes_(self.missing):
            return f", {bytes_(least)} short"
        return f", at least {bytes_(least)} short" if least > 0 else ""

    def _blocks(self) -> Iterator[Block]:
        yield self._headline()
        if self.source:
            yield Line.of(f"    {self.source}", "dim")
        if self.total is not None:
            yield from self._figures()
            now = self.allocated if self.allocated_now is None else self.allocated_now
            unknown = self.garbage if self.unattributed is None else self.unattributed
            rest = {GARBAGE: self.garbage, NO_VARIABLE: unknown - self.garbage}
            yield holder_table("Held by", self.holders, now or 1, rest, brief=True)
            yield from self._hints()

    def _headline(self) -> Line:
        device = "the GPU" if self.device is None else f"cuda:{self.device}"
        name = f" ({self.name})" if self.name else ""
        tried = "" if self.requested is None else f" tried to allocate {bytes_(self.requested)}"
        call = f": {self.where or 'the failed call'}{tried}" if tried or self.where else ""
        head = Styled(f"✗ Out of memory on {device}{name}", "bad")
        return Line.join(head, call, Styled(self._missing_text(), "strong"))

    def _figures(self) -> Iterator[Line]:
        """Yield where the memory was: ``2 GiB free of 80 GiB · 70 GiB allocated · …``; and is."""
        cached = None
        if self.reserved is not None and self.allocated is not None:
            cached = self.reserved - self.allocated
        figures = {
            f"free of {bytes_(self.total)}": self.free,
            "allocated": self.allocated,
            "cached": cached,
            "CUDA context and libraries": self.outside,
            "other processes": self.others,
            "is the limit of this process": self.limit,
        }
        known = (f"{bytes_(size)} {what}" for what, size in figures.items() if size is not None)
        then = "" if self.allocated_now is None else "When it failed: "
        yield Line.of(f"{then}{' · '.join(known)}")
        if self.allocated_now is not None and self.allocated is not None:
            gone = bytes_(self.allocated - self.allocated_now)
            now = f"Now: {bytes_(self.allocated_now)} allocated"
            yield Line.of(f"{now}; {gone} went with values that had no name")

    def _hints(self) -> Iterator[Line]:
        """Yield what helps."""
        if self.requested and self.total and self.requested > self.total:
            yield Line.of("The request is larger than the device: ask for less.", "strong")
            return
        all_known = self.unattributed is not None and self.unattributed <= self.garbage
        least = "" if all_known else "at least "
        freed = [GARBAGE] if self.garbage else []
        if (self.recoverable or 0) > self.garbage:
            freed.append(_BY_NOTEBOOK)
        commands = {
            f"%gpumem free {self.replaced}": (self.with_replaced, _MADE_ANEW),
            "%gpumem free": (self.recoverable, ", and ".join(freed)),
        }
        for command, (size, why) in commands.items():
            if size:
                gives = f" gives {least}{bytes_(size)}"
                yield Line.join(Styled(command, "command"), gives, Styled(f": {why}", "dim"))
        if self.others and self.others >= (self.missing or math.inf):
            why = f": other processes hold {bytes_(self.others)} of this one; variables are kept"
            another = Styled("%gpu auto --restart", "command")
            yield Line.join(another, " takes another GPU", Styled(why, "dim"))
        if self.fragmented:
            text = "Enough is cached, in pieces that are too small: restart with "
            yield Line.join(text, Styled(self.fragmented, "command"))
