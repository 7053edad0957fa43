"""The report on an allocation that failed."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, dim_lines
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result
from gpumagic.results.holders import NO_VARIABLE, Holder, kind_of, name_cell

#: The most holders that have a row; the others are summed.
_TOP = 6


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
    #: Of this process outside torch's allocator, and of other processes.
    outside: int | None = None
    others: int | None = None
    #: What torch's allocator may reserve, where that is less than the device's memory.
    limit: int | None = None
    #: Largest first, with the variables of the failed functions.
    holders: tuple[Holder, ...] = ()
    #: Not referenced by any known variable.
    unattributed: int | None = None
    #: What ``%gpumem free`` would give back.
    recoverable: int | None = None
    #: The environment variable that helps where enough is reserved and unused, in small pieces.
    fragmented: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> int | None:
        """The bytes by which the request exceeded the free memory; None where not known."""
        if self.requested is None or self.free is None or self.fragmented:
            return None
        free = self.free
        if self.limit is not None and self.reserved is not None:
            # Negative where the process is over its limit: so much must be freed first.
            free = min(free, self.limit - self.reserved)
        return self.requested - free if self.requested > free else None

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = [self._headline()]
        if self.source:
            blocks.append(Line.of(f"    {self.source}", "dim"))
        if self.total is None:
            return blocks
        blocks.append(self._figures())
        if self.holders:
            blocks.append(self._holders())
        return [*blocks, *self._hints(), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        return f"<OutOfMemory: {self.requested} B on cuda:{self.device}>"

    def _headline(self) -> Line:
        device = "the GPU" if self.device is None else f"cuda:{self.device}"
        name = f" ({self.name})" if self.name else ""
        tried = "" if self.requested is None else f" tried to allocate {bytes_(self.requested)}"
        call = f": {self.where or 'the failed call'}{tried}" if tried or self.where else ""
        missing = f", {bytes_(self.missing)} short" if self.missing else ""
        head = Cell(f"✗ Out of memory on {device}{name}", "bad")
        return Line((head, Cell(call), Cell(missing, "strong")))

    def _figures(self) -> Line:
        """Return where the memory is: ``2 GiB free of 80 GiB · 70 GiB allocated · …``."""
        cached = None
        if self.reserved is not None and self.allocated is not None:
            cached = self.reserved - self.allocated
        figures = {
            f"free of {bytes_(self.total)}": self.free,
            "allocated": self.allocated,
            "cached": cached,
            "non-PyTorch": self.outside,
            "other processes": self.others,
            "is the limit of this process": self.limit,
        }
        known = (f"{bytes_(size)} {what}" for what, size in figures.items() if size is not None)
        return Line.of(" · ".join(known))

    def _holders(self) -> Grid:
        columns = [Column("Held by"), Column("Memory", "right"), Column("Kind", rank=1, least=8)]
        total = self.allocated or 1
        rows: list[list[Cell]] = []
        for holder in self.holders[:_TOP]:
            memory = Cell(bytes_(holder.bytes), bar=holder.bytes / total)
            rows.append([name_cell(holder), memory, Cell(kind_of(holder), "dim")])
        rest = {
            f"{len(self.holders) - _TOP} more": sum(h.bytes for h in self.holders[_TOP:]),
            NO_VARIABLE: self.unattributed or 0,
        }
        for name, size in rest.items():
            if size:
                rows.append([Cell(name, "dim"), Cell(bytes_(size), "dim", size / total), Cell("")])
        return Grid(columns, rows)

    def _hints(self) -> list[Line]:
        """Return what helps."""
        if self.requested and self.total and self.requested > self.total:
            return [Line.of("The request is larger than the device: ask for less.", "strong")]
        lines = []
        if self.recoverable:
            why = "what the failed functions and the outputs hold; %debug has nothing to show then"
            lines.append(
                Line(
                    (
                        Cell("%gpumem free", "command"),
                        Cell(f" gives {bytes_(self.recoverable)}"),
                        Cell(f": {why}", "dim"),
                    )
                )
            )
        if self.fragmented:
            text = "Enough is cached, in pieces that are too small: restart with "
            lines.append(Line((Cell(text), Cell(self.fragmented, "command"))))
        return lines
