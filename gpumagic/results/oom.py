"""Why an allocation failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, dim_lines
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result
from gpumagic.results.holders import Holder
from gpumagic.results.processes import Process


@dataclass(frozen=True)
class Remedy:
    """A way to make the allocation succeed."""

    #: What to type, or to do.
    what: str
    #: Its benefit and its cost.
    why: str
    #: Bytes that it frees for the device or the allocator; None where not known.
    gives: int | None = None
    #: Whether that is enough for the request; None where not known.
    enough: bool | None = None


@dataclass(frozen=True)
class OutOfMemory(Result):
    """Why an allocation failed. Bytes; None where not known."""

    #: The CUDA ordinal; None where the exception does not say.
    device: int | None = None
    name: str | None = None
    #: The requested bytes, to the two decimals of torch's message.
    requested: int | None = None
    #: The user's line that failed: ``In[5] line 3 in forward``; and its source.
    where: str | None = None
    source: str | None = None
    total: int | None = None
    free: int | None = None
    #: Reserved by torch's allocator, and the part that live tensors hold.
    reserved: int | None = None
    allocated: int | None = None
    #: Non-PyTorch memory of this process.
    outside: int | None = None
    #: Memory of other processes, and the processes.
    others: int | None = None
    processes: tuple[Process, ...] = ()
    #: The largest block that is reserved and unused.
    largest_free: int | None = None
    #: The limit of this process's allocator, where it is less than the device's memory.
    limit: int | None = None
    #: Whether enough was reserved and unused, but in blocks that were too small.
    fragmented: bool | None = None
    fragmentation: Literal["expandable", "too-late", ""] = ""
    #: Largest first, with the locals of the failed functions.
    holders: tuple[Holder, ...] = ()
    #: Not referenced by any known variable.
    unattributed: int | None = None
    #: What ``%gpumem free`` would give back.
    recoverable: int | None = None
    #: The smallest first.
    remedies: tuple[Remedy, ...] = ()
    #: Whether all objects were searched; if not, there may be holders that are not listed.
    complete: bool = True
    notes: tuple[str, ...] = ()

    @property
    def unused(self) -> int | None:
        """Reserved by the allocator and used by no tensor."""
        if self.reserved is None or self.allocated is None:
            return None
        return self.reserved - self.allocated

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = [_headline(self)]
        if self.source:
            blocks.append(Line.of(f"    {self.source}", "dim"))
        if self.total is None:
            return blocks
        blocks += [_places(self), *_verdict(self)]
        if self.holders or not self.complete:
            blocks.append(_holders(self))
        blocks += [_remedy(number, remedy) for number, remedy in enumerate(self.remedies, 1)]
        return [*blocks, *dim_lines(self.notes)]

    def __repr__(self) -> str:
        return f"<OutOfMemory: {self.requested} B on cuda:{self.device}>"


def _headline(result: OutOfMemory) -> Line:
    device = "the GPU" if result.device is None else f"cuda:{result.device}"
    name = f" ({result.name})" if result.name else ""
    tried = "" if result.requested is None else f" tried to allocate {bytes_(result.requested)}"
    where = result.where or "the failed call"
    call = f": {where}{tried}" if tried or result.where else ""
    return Line((Cell(f"Out of memory on {device}{name}", "bad"), Cell(call)))


def _places(result: OutOfMemory) -> Grid:
    """Return what the device's memory is used for."""
    columns = [Column("Where"), Column("Bytes"), Column("What", rank=1)]
    return Grid(columns, [_place(result, *row) for row in _rows(result)], header=False)


def _rows(result: OutOfMemory) -> Iterator[tuple[str, int | None, str]]:
    yield "live tensors", result.allocated, ""
    largest = "" if not result.largest_free else f"largest block {bytes_(result.largest_free)}"
    yield "reserved, unused", result.unused, largest
    if result.outside:
        yield "non-PyTorch memory", result.outside, "CUDA's context, libraries"
    if result.others:
        yield "other processes", result.others, _processes(result.processes)
    limited = ""
    if result.limit is not None:
        limited = f"this process may use {bytes_(result.limit)}"
    yield "free", result.free, limited


def _place(result: OutOfMemory, what: str, size: int | None, more: str) -> list[Cell]:
    share = None if size is None or not result.total else size / result.total
    return [Cell(what), Cell(bytes_(size), bar=share), Cell(more, "dim")]


def _processes(processes: Sequence[Process]) -> str:
    """Return the user's processes by name and the number of others.

    Others are not named since the report is saved with the notebook.
    """
    mine = [process for process in processes if process.mine]
    listed = [f"{p.command or '?'} (pid {p.pid}) {bytes_(p.memory)}" for p in mine[:3]]
    if len(mine) > 3:
        listed.append(f"{len(mine) - 3} more of yours")
    if len(processes) > len(mine):
        listed.append(f"{len(processes) - len(mine)} not yours, as far as is known")
    return ", ".join(listed)


def _verdict(result: OutOfMemory) -> Iterator[Line]:
    if result.fragmented:
        yield Line.of(
            "Fragmented: enough memory is reserved and unused, but in blocks that are too small",
            "warn",
        )
    elif result.fragmented is False:
        on = "; expandable segments are on" if result.fragmentation == "expandable" else ""
        yield Line.of(f"Fragmentation is not the cause{on}", "dim")


def _holders(result: OutOfMemory) -> Grid:
    columns = [Column("Held by"), Column("Bytes"), Column("What", rank=1), Column("Also", rank=2)]
    rows = [_holder(result, holder) for holder in result.holders]
    if result.unattributed:
        share = result.unattributed / result.allocated if result.allocated else None
        size = Cell(bytes_(result.unattributed), "dim", share)
        who = "not referenced by any variable"
        if not result.complete:
            who = "not known: the search was incomplete"
        rows.append([Cell(who, "dim"), size, Cell(""), Cell("")])
    return Grid(columns, rows)


def _holder(result: OutOfMemory, holder: Holder) -> list[Cell]:
    parts = sorted(holder.parts.items(), key=lambda item: -item[1])
    named = [f"{part} {bytes_(size)}" for part, size in parts if part]
    what = ", ".join(named) if len(parts) > 1 else holder.kind
    return [
        Cell(holder.name, "warn" if holder.pinned else "strong"),
        Cell(bytes_(holder.bytes), bar=holder.bytes / (result.allocated or 1)),
        Cell(what, "dim"),
        Cell(", ".join(holder.also[:3]), "dim"),
    ]


def _remedy(number: int, remedy: Remedy) -> Line:
    gives = "" if remedy.gives is None else f" gives {bytes_(remedy.gives)}"
    verdict = {True: ", enough", False: ", not enough", None: ""}[remedy.enough] if gives else ""
    return Line(
        (
            Cell(f"{number}. "),
            Cell(remedy.what, "good" if remedy.enough else "strong"),
            Cell(f"{gives}{verdict}"),
            Cell(f": {remedy.why}", "dim"),
        )
    )
