"""What holds GPU memory: variables and cells; and the report on an allocation that failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from gpumagic.render.blocks import Block, Cell, Column, Figures, Grid, Line, Text
from gpumagic.render.units import bytes_, share
from gpumagic.results.base import Result
from gpumagic.results.logs import cell_number

#: The most holders that have a row in a table, and below an allocation that failed.
_ROWS, _TOP = 15, 6
#: The most characters of a cell's first line.
_LONGEST = 44
#: What memory without a known variable is called; and where it is known whose it is.
_NO_VARIABLE = "not referenced by any variable"
_GARBAGE, _LIVE, _IN_CPP = "garbage in cycles", "running code, libraries", "C++ alone"
_MEANS = {
    _NO_VARIABLE: "there was no time to see whether it is garbage or in use",
    _GARBAGE: "no variable leads to it; %gpumem free gives it back",
    _LIVE: "objects in use that no variable leads to, such as a running thread's",
    _IN_CPP: "mostly work space of libraries; %gpumem free gives back that of cuBLAS",
    "!": "kept by the notebook, not by a variable; %gpumem free gives it back",
}


@dataclass(frozen=True)
class Holder:
    """The memory that one variable, or the notebook, holds on one device. Bytes."""

    #: As the user would name it: ``model``, ``Out[3]``, ``h in forward, In[5] line 3``.
    name: str
    #: ``module``, ``tensor``, ``optimizer``, ``function``, ``list``… or ``notebook``.
    kind: str
    #: The memory counted here. Memory of several variables is counted once, at the first of them.
    bytes: int
    #: The same by role: ``parameters``, ``gradients``, ``optimizer state``…
    parts: Mapping[str, int]
    #: The number of allocations counted here.
    blocks: int
    #: The memory that deleting this variable alone frees: nothing else holds it.
    frees: int
    #: The other variables that hold some of the memory counted here.
    also: tuple[str, ...] = ()
    #: Whether it is referenced by the notebook, not by a variable: ``%gpumem free`` frees it.
    by_notebook: bool = False


@dataclass(frozen=True)
class DeviceHolders:
    """The holders of one device's memory. Bytes.

    ``named + notebook + unattributed + rounding`` is exactly ``allocated``.
    """

    #: Allocated bytes by torch's allocator.
    allocated: int
    #: Held by variables.
    named: int
    #: Held only by the notebook (``Out``, ``_``, the last exception…).
    notebook: int
    #: Not referenced by any variable.
    unattributed: int
    #: The bytes that the allocator adds by rounding requests up.
    rounding: int
    #: Largest first.
    holders: tuple[Holder, ...] = ()
    #: Of ``unattributed``: of objects in reference cycles that Python's collector has not come to;
    #: and of other objects, of running functions or libraries. None where that is not known.
    garbage: int | None = None
    live: int | None = None

    def unreferenced(self) -> dict[str, int]:
        """Return the parts of ``unattributed``, by what they are called."""
        if self.garbage is None or self.live is None:
            return {_NO_VARIABLE: self.unattributed}
        rest = self.unattributed - self.garbage - self.live
        return {_GARBAGE: self.garbage, _LIVE: self.live, _IN_CPP: rest}

    def __getitem__(self, name: str) -> Holder:
        """Return the holder of that name.

        Raises:
            KeyError: no such name.
        """
        return {holder.name: holder for holder in reversed(self.holders)}[name]


@dataclass(frozen=True, repr=False)
class Holders(Result):
    """The holders of GPU memory: one `DeviceHolders` for each CUDA ordinal in use."""

    devices: Mapping[int, DeviceHolders] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none; one line.
    error: str | None = None

    _index: ClassVar[tuple[str, ...]] = ("device", "name")

    def _records(self) -> Iterator[Mapping[str, Any]]:
        for ordinal, device in self.devices.items():
            yield from ({"device": ordinal, **asdict(holder)} for holder in device.holders)

    def _blocks(self) -> list[Block]:
        if self.error is not None:
            return [Line.of(f"No GPU memory to show: {self.error}", "dim")]
        shown = {i: device for i, device in self.devices.items() if device.allocated}
        if not shown:
            return Line.said("No GPU memory is allocated", *self.notes)
        blocks: list[Block] = []
        for ordinal, device in shown.items():
            sizes = (device.allocated, device.unreferenced())
            blocks.append(_table(f"cuda:{ordinal}", device.holders, *sizes, brief=False))
            blocks.append(_sum(device))
        used = {"!" for device in shown.values() if device.notebook}
        for device in shown.values():
            used |= {name for name, size in device.unreferenced().items() if size}
        blocks += [Line.of(f"{n}: {means}", "dim") for n, means in _MEANS.items() if n in used]
        return [*blocks, *Line.notes(self.notes)]


def _table(
    title: str, holders: Sequence[Holder], total: int, rest: Mapping[str, int], *, brief: bool
) -> Grid:
    """Return the largest holders, and the sums of the others and of what has none.

    ``brief``: fewer, without their parts and the columns on the right.
    """
    most = _TOP if brief else _ROWS
    counted = [holder for holder in holders if holder.bytes]
    rows: list[list[Text]] = []
    for holder in counted[:most]:
        frees = "all" if holder.frees == holder.bytes else bytes_(holder.frees)
        named = Cell(holder.name, "strong")
        rows.append(
            [
                Cell(f"! {holder.name}", "warn") if holder.by_notebook else named,
                Cell(bytes_(holder.bytes), bar=holder.bytes / total),
                *(_kind(holder), str(holder.blocks), frees),
                Cell.few(holder.also, 3, "dim"),
            ]
        )
        parts = sorted(holder.parts.items(), key=lambda item: -item[1])
        if len(parts) > 1 and not brief:
            rows += [_plain(f"└ {part or 'tensors'}", size, total) for part, size in parts]
    more = sum(holder.bytes for holder in counted[most:])
    others = {f"{len(counted) - most} more": more, **rest}
    rows += [_plain(name, size, total) for name, size in others.items() if size]
    columns: list[Column[Any]] = [
        Column(title),
        Figures("Memory"),
        Column("Kind", rank=2, least=8),
        Figures("Blocks", rank=4),
        Figures("Frees", rank=3),
        Column("Also held by", rank=1, least=12),
    ]
    return Grid.of(rows, columns[:3] if brief else columns, dim=lambda _: True)


def _plain(name: str, size: int, total: int) -> list[Text]:
    return [name, Cell(bytes_(size), "dim", size / total), "", "", "", ""]


def _kind(holder: Holder) -> str:
    """Return the kind: ``module``, ``optimizer state``, ``function's closure``."""
    part = next(iter(holder.parts), "") if len(holder.parts) == 1 else ""
    if holder.kind in part:
        return part
    return f"{holder.kind}: {part}" if part else holder.kind


def _sum(device: DeviceHolders) -> Line:
    """Return the sum of the rows: exactly the allocated bytes."""
    parts = [
        ("variables", device.named),
        ("notebook", device.notebook),
        *device.unreferenced().items(),
        ("rounding", device.rounding),
    ]
    terms = [f"{name} {bytes_(size)}" for name, size in parts if size]
    exact = f" ({device.allocated:,} B)" if device.allocated >= 1024 else ""
    allocated = Cell(f"{bytes_(device.allocated)} allocated{exact}", "strong")
    return Line.join(allocated, f" = {' + '.join(terms)}")


@dataclass(frozen=True)
class CellHolding:
    """The memory that one cell has allocated on one device, as far as it is still allocated."""

    #: The execution number; None where no cell is known, and then ``source`` says where.
    number: int | None
    #: The cell's first line, or the place that allocated the memory.
    source: str
    #: Bytes, as the allocator rounds them.
    bytes: int
    #: The number of allocations.
    blocks: int


@dataclass(frozen=True, repr=False)
class CellHoldings(Result):
    """Live GPU memory by the cell that allocated it; the sum is exactly what is allocated."""

    #: By CUDA ordinal, the largest first.
    devices: Mapping[int, tuple[CellHolding, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    _index: ClassVar[tuple[str, ...]] = ("device", "cell")

    def _records(self) -> Iterator[Mapping[str, Any]]:
        for ordinal, held in self.devices.items():
            for each in held:
                sizes = {"bytes": each.bytes, "blocks": each.blocks}
                yield {"device": ordinal, "cell": each.number, "source": each.source, **sizes}

    def _blocks(self) -> list[Block]:
        columns: list[Column[Any]] = [
            Column("Device"),
            Figures("Cell"),
            Column("First line", least=16),
            Figures("Memory"),
            Figures("Share"),
            Figures("Blocks", rank=1),
        ]
        rows = [row for ordinal, held in self.devices.items() for row in _held(ordinal, held)]
        if not rows:
            return Line.said("No GPU memory is allocated", *self.notes)
        return [Grid.of(rows, columns), *Line.notes(self.notes)]


def _held(ordinal: int, holdings: Sequence[CellHolding]) -> Iterator[list[Text]]:
    """Yield the rows of a device: its cells, and the sum of several."""
    total, device = sum(held.bytes for held in holdings), Cell(f"cuda:{ordinal}", "strong")
    for held in holdings:
        known, part = held.number is not None, held.bytes / total
        yield [
            device if held is holdings[0] else "",
            cell_number(held.number) if known else "",
            Cell.cut(held.source, _LONGEST, "" if known else "dim"),
            bytes_(held.bytes),
            Cell(share(part), "dim", bar=part),
            Cell(str(held.blocks), "dim"),
        ]
    if len(holdings) > 1:
        blocks = Cell(str(sum(held.blocks for held in holdings)), "dim")
        sums = (Cell("allocated", "dim"), Cell(bytes_(total), "strong"), "", blocks)
        yield ["", "", *sums]


@dataclass(frozen=True, repr=False)
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
        source = [Line.of(f"    {self.source}", "dim")] if self.source else []
        if self.total is None:
            return [self._headline(), *source]
        now = self.allocated if self.allocated_now is None else self.allocated_now
        rest = {_GARBAGE: self.garbage, _NO_VARIABLE: (self.unattributed or 0) - self.garbage}
        grid = _table("Held by", self.holders, now or 1, rest, brief=True)
        table = [grid] if self.holders or self.garbage else []
        blocks: list[Block] = [self._headline(), *source, *self._figures(), *table, *self._hints()]
        return [*blocks, *Line.notes(self.notes)]

    def _headline(self) -> Line:
        device = "the GPU" if self.device is None else f"cuda:{self.device}"
        name = f" ({self.name})" if self.name else ""
        tried = "" if self.requested is None else f" tried to allocate {bytes_(self.requested)}"
        call = f": {self.where or 'the failed call'}{tried}" if tried or self.where else ""
        missing = f", {bytes_(self.missing)} short" if self.missing else ""
        head = Cell(f"✗ Out of memory on {device}{name}", "bad")
        return Line.join(head, call, Cell(missing, "strong"))

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
        what, debug = "what the failed functions and the outputs hold", "%debug has nothing to show"
        parts = [_GARBAGE] if self.garbage else []
        parts += [f"{what}; {debug} then"] if (self.recoverable or 0) > self.garbage else []
        least = "at least " if (self.unattributed or 0) > self.garbage else ""
        for names, size, why in (
            (f" {self.replaced}", self.with_replaced, "the cell makes it anew beside the last one"),
            ("", self.recoverable, ", and ".join(parts)),
        ):
            if size:
                command = Cell(f"%gpumem free{names}", "command")
                yield Line.join(command, f" gives {least}{bytes_(size)}", Cell(f": {why}", "dim"))
        if self.fragmented:
            text = "Enough is cached, in pieces that are too small: restart with "
            yield Line.join(text, Cell(self.fragmented, "command"))
