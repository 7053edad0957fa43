"""The report on an allocation that failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, dim_lines, few, legend, use_of
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result
from gpumagic.results.holders import NO_VARIABLE, Holder, kind_of, name_cell, parts
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
    """The report on an allocation that failed. Bytes; None where not known."""

    #: The CUDA ordinal; None where the exception does not name it.
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
    #: The memory that ``%gpumem free`` would free.
    recoverable: int | None = None
    #: The smallest first.
    remedies: tuple[Remedy, ...] = ()
    #: Whether all objects were searched; if not, there may be holders that are not listed.
    complete: bool = True
    notes: tuple[str, ...] = ()
    #: The number of holders that are not listed, and the memory counted at them.
    more_holders: int = 0
    more_bytes: int | None = None

    @property
    def unused(self) -> int | None:
        """Memory that the allocator has reserved and no tensor uses."""
        if self.reserved is None or self.allocated is None:
            return None
        return self.reserved - self.allocated

    @property
    def missing(self) -> int | None:
        """The bytes by which the request exceeded the free memory; None where not known.

        None also if enough was reserved and unused, in blocks that were too small.
        """
        if self.requested is None or self.free is None or self.fragmented:
            return None
        free = self.free
        if self.limit is not None and self.reserved is not None:
            # Negative where the process is over its limit: so much must be freed first.
            free = min(free, self.limit - self.reserved)
        return self.requested - free if self.requested > free else None

    @property
    def is_too_large(self) -> bool:
        """Whether the request is larger than the device's memory."""
        if self.requested is None or self.total is None:
            return False
        return self.requested > self.total

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = [_headline(self)]
        if self.source:
            blocks.append(Line.of(f"    {self.source}", "dim"))
        if self.total is None:
            return blocks
        blocks += [*_places(self), *_verdict(self)]
        if self.is_too_large:
            size = bytes_(self.total)
            text = f"No memory that is freed helps: {size} is all there is. Ask for less."
            return [*blocks, Line.of(text, "strong")]  # the notes are on the holders
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
    missing = f"{bytes_(result.missing)} short" if result.missing else ""
    call += ", " * bool(missing)
    return Line(
        (Cell(f"✗ Out of memory on {device}{name}", "bad"), Cell(call), Cell(missing, "strong"))
    )


def _places(result: OutOfMemory) -> Iterator[Block]:
    """Yield the uses of the device's memory: one bar, and the figures."""
    stack = use_of(
        result.total,
        result.free,
        allocated=result.allocated,
        reserved=result.reserved,
        outside=result.outside,
        others=result.others,
    )
    if stack is not None:
        free = f"{bytes_(result.free)} free of {bytes_(result.total)}"
        yield Grid((Column("Device"),), [(Cell(free, stack=stack),)], header=False)
        yield from legend([stack])
    columns = [Column("Where"), Column("Memory", "right"), Column("What", least=24, wrap=True)]
    rows = [
        [Cell(what), Cell(bytes_(size)), Cell(more, "dim")] for what, size, more in _rows(result)
    ]
    yield Grid(columns, rows, header=False)


def _rows(result: OutOfMemory) -> Iterator[tuple[str, int | None, str]]:
    yield "allocated", result.allocated, "live tensors"
    largest = "" if not result.largest_free else f"largest block {bytes_(result.largest_free)}"
    yield "cached", result.unused, largest or "reserved by PyTorch, unused"
    if result.outside:
        yield "non-PyTorch", result.outside, "CUDA's context, libraries"
    if result.others:
        yield "other processes", result.others, _processes(result.processes)
    limited = ""
    if result.limit is not None:
        limited = f"this process may use {bytes_(result.limit)}"
    yield "free", result.free, limited


def _processes(processes: Sequence[Process]) -> str:
    """Return the user's processes by name, and the number of others.

    Others are not named, since the report is saved with the notebook.
    """
    mine = [process for process in processes if process.mine]
    named = [f"{p.command or '?'} (pid {p.pid}) {bytes_(p.memory)}" for p in mine[:3]]
    if len(mine) > 3:
        named.append(f"{len(mine) - 3} more of yours")
    if len(processes) > len(mine):
        named.append(f"{len(processes) - len(mine)} not yours, as far as is known")
    return ", ".join(named)


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
    columns = [
        Column("Held by"),
        Column("Memory", "right"),
        Column("Kind", rank=1, least=8),
        Column("Also held by", rank=2, least=10),
    ]
    total = result.allocated or 1
    rows = [row for holder in result.holders for row in _holder(holder, total)]
    if result.more_holders:
        rows.append(_plain(f"{result.more_holders} more", result.more_bytes or 0, total))
    if result.unattributed:
        who = NO_VARIABLE if result.complete else "not known: the search was incomplete"
        rows.append(_plain(who, result.unattributed, total))
    return Grid(columns, rows)


def _holder(holder: Holder, total: int) -> list[list[Cell]]:
    """Return a holder's row and those of its parts, named and grouped as by `%gpumem vars`."""
    first = [
        name_cell(holder),
        Cell(bytes_(holder.bytes), bar=holder.bytes / total),
        Cell(kind_of(holder), "dim"),
        few(holder.also, 3, "dim"),
    ]
    return [first, *(_plain(part, size, total) for part, size in parts(holder))]


def _plain(name: str, size: int, total: int) -> list[Cell]:
    return [Cell(name, "dim"), Cell(bytes_(size), "dim", size / total), Cell(""), Cell("")]


def _remedy(number: int, remedy: Remedy) -> Line:
    gives = "" if remedy.gives is None else f" gives {bytes_(remedy.gives)}"
    verdict = {True: "✓ enough", False: "not enough", None: ""}[remedy.enough] if gives else ""
    command = remedy.what.startswith("%")
    return Line(
        (
            Cell(f"{number}. "),
            Cell(remedy.what, "command" if command else "strong"),
            Cell(f"{gives}{', ' * bool(verdict)}"),
            Cell(verdict, "good" if remedy.enough else ""),
            Cell(f": {remedy.why}", "dim"),
        )
    )
