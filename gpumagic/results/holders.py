"""What holds GPU memory: variables and cells; and the report on an allocation that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, dim_lines, few, names_line
from gpumagic.render.units import bytes_, share
from gpumagic.results.base import Result, data_frame
from gpumagic.results.logs import cell_number, first_line
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

#: The most holders of a device that have a row; the others are summed.
_ROWS = 15
#: What memory without a known variable is called.
NO_VARIABLE = "not referenced by any variable"


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
    #: The memory that other variables hold too, counted here or there.
    shared: int
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

    def __getitem__(self, name: str) -> Holder:
        """Return the holder of that name.

        Raises:
            KeyError: no such name.
        """
        for holder in self.holders:
            if holder.name == name:
                return holder
        raise KeyError(name)


@dataclass(frozen=True)
class Holders(Result):
    """The holders of GPU memory: one `DeviceHolders` for each CUDA ordinal in use."""

    devices: Mapping[int, DeviceHolders] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none; one line.
    error: str | None = None

    def _blocks(self) -> list[Block]:
        if self.error is not None:
            return [Line.of(f"No GPU memory to show: {self.error}", "dim")]
        shown = {i: device for i, device in self.devices.items() if device.allocated}
        if not shown:
            return [Line.of("No GPU memory is allocated"), *dim_lines(self.notes)]
        blocks: list[Block] = []
        for ordinal, device in shown.items():
            blocks += [_table(f"cuda:{ordinal}", device), _sum(device)]
            if unlisted := _unlisted(device):
                blocks.append(names_line("Hold only memory that is counted at others: ", unlisted))
        return [*blocks, *dim_lines(self.notes)]

    def __repr__(self) -> str:
        number = sum(len(device.holders) for device in self.devices.values())
        return f"<Holders: {number} on {plural(len(self.devices), 'device')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each device and holder (needs pandas). Bytes."""
        columns = ["device", "name", "kind", "bytes", "blocks", "frees", "shared", "by_notebook"]
        rows = [
            [ordinal, *(getattr(holder, column) for column in columns[1:])]
            for ordinal, device in self.devices.items()
            for holder in device.holders
        ]
        return data_frame(rows, columns, index=["device", "name"])


def _table(title: str, device: DeviceHolders) -> Grid:
    """Return the holders of one device, largest first, and the memory without a variable."""
    counted = [holder for holder in device.holders if holder.bytes]
    rows = [row for holder in counted[:_ROWS] for row in _rows(holder, device.allocated)]
    if rest := counted[_ROWS:]:
        size = sum(holder.bytes for holder in rest)
        number = sum(holder.blocks for holder in rest)
        rows.append(_plain(f"{len(rest)} more", size, device.allocated, number))
    if device.unattributed:
        rows.append(_plain(NO_VARIABLE, device.unattributed, device.allocated))
    columns = [
        Column(title),
        Column("Memory", "right"),
        Column("Kind", rank=2, least=8),
        Column("Blocks", "right", rank=4),
        Column("Frees", "right", rank=3),
        Column("Also held by", rank=1, least=12),
    ]
    return Grid(columns, rows)


def name_cell(holder: Holder) -> Cell:
    """Return a holder's name, marked where the notebook references it."""
    mark = "! " * holder.by_notebook
    return Cell(mark + holder.name, "warn" if holder.by_notebook else "strong")


def parts(holder: Holder) -> list[tuple[str, int]]:
    """Return names and sizes of a holder's parts, largest first; empty for a single one."""
    sizes = sorted(holder.parts.items(), key=lambda item: -item[1])
    return [(f"└ {part or 'tensors'}", size) for part, size in sizes] if len(sizes) > 1 else []


def _rows(holder: Holder, total: int) -> list[list[Cell]]:
    """Return a holder's row, and below it one for each of its parts, if they are several."""
    frees = "all" if holder.frees == holder.bytes else bytes_(holder.frees)
    first = [
        name_cell(holder),
        Cell(bytes_(holder.bytes), bar=holder.bytes / total),
        Cell(kind_of(holder), "dim"),
        Cell(str(holder.blocks), "dim"),
        Cell(frees, "dim"),
        few(holder.also, 3, "dim"),
    ]
    return [first, *(_plain(part, size, total) for part, size in parts(holder))]


def _plain(name: str, size: int, total: int, number: int | None = None) -> list[Cell]:
    blank = Cell("")
    count = Cell("" if number is None else str(number), "dim")
    return [Cell(name, "dim"), Cell(bytes_(size), "dim", size / total), blank, count, blank, blank]


def kind_of(holder: Holder) -> str:
    """Return the kind: ``module``, ``optimizer state``, ``function's closure``."""
    part = next(iter(holder.parts), "") if len(holder.parts) == 1 else ""
    if holder.kind in part:
        return part
    return f"{holder.kind}: {part}" if part else holder.kind


def _unlisted(device: DeviceHolders) -> list[str]:
    """Return the variables without counted memory that no holder has in ``also``."""
    also = {name for holder in device.holders for name in holder.also}
    return [
        holder.name
        for holder in device.holders
        if not holder.bytes and not holder.by_notebook and holder.name not in also
    ]


def _sum(device: DeviceHolders) -> Line:
    """Return the sum of the rows: exactly the allocated bytes."""
    parts = [
        ("variables", device.named),
        ("notebook", device.notebook),
        ("unreferenced", device.unattributed),
        ("rounding", device.rounding),
    ]
    terms = [f"{name} {bytes_(size)}" for name, size in parts if size]
    exact = f" ({device.allocated:,} B)" if device.allocated >= 1024 else ""
    return Line(
        (
            Cell(f"{bytes_(device.allocated)} allocated{exact}", "strong"),
            Cell(f" = {' + '.join(terms)}"),
        )
    )


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


@dataclass(frozen=True)
class CellHoldings(Result):
    """Live GPU memory by the cell that allocated it; the sum is exactly what is allocated."""

    #: By CUDA ordinal, the largest first.
    devices: Mapping[int, tuple[CellHolding, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        columns = [
            Column("Device"),
            Column("Cell", "right"),
            Column("First line", least=16),
            Column("Memory", "right"),
            Column("Share", "right"),
            Column("Blocks", "right", rank=1),
        ]
        rows: list[list[Cell]] = []
        for ordinal, held in self.devices.items():
            total = sum(h.bytes for h in held)
            names = [f"cuda:{ordinal}", *[""] * (len(held) - 1)]
            rows += [_cell_row(name, h, total) for name, h in zip(names, held, strict=True)]
            if len(held) > 1:
                blocks = str(sum(h.blocks for h in held))
                rows.append(
                    [
                        *(Cell(""), Cell(""), Cell("allocated", "dim")),
                        *(Cell(bytes_(total), "strong"), Cell(""), Cell(blocks, "dim")),
                    ]
                )
        if not rows:
            return [Line.of("No GPU memory is allocated"), *dim_lines(self.notes)]
        return [Grid(columns, rows), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        total = sum(h.bytes for holdings in self.devices.values() for h in holdings)
        return f"<CellHoldings: {total} B on {plural(len(self.devices), 'device')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each device and cell (needs pandas)."""
        rows = [
            (ordinal, h.number, h.source, h.bytes, h.blocks)
            for ordinal, holdings in self.devices.items()
            for h in holdings
        ]
        columns = ["device", "cell", "source", "bytes", "blocks"]
        return data_frame(rows, columns, index=["device", "cell"], types={"cell": "Int64"})


def _cell_row(device: str, held: CellHolding, total: int) -> list[Cell]:
    part = held.bytes / total
    known = held.number is not None
    return [
        Cell(device, "strong"),
        cell_number(held.number) if known else Cell(""),
        first_line(held.source, "" if known else "dim"),
        Cell(bytes_(held.bytes)),
        Cell(share(part), "dim", bar=part),
        Cell(str(held.blocks), "dim"),
    ]


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
            gives = Cell(f" gives {bytes_(self.recoverable)}")
            lines.append(Line((Cell("%gpumem free", "command"), gives, Cell(f": {why}", "dim"))))
        if self.fragmented:
            text = "Enough is cached, in pieces that are too small: restart with "
            lines.append(Line((Cell(text), Cell(self.fragmented, "command"))))
        return lines
