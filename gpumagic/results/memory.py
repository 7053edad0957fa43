"""The current GPU memory, and its change by a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumagic.render.blocks import (
    DASH,
    Block,
    Cell,
    Column,
    Grid,
    Line,
    Style,
    Use,
    dim_lines,
    legend,
    marked_memory,
    use_of,
)
from gpumagic.render.units import bytes_
from gpumagic.results.base import Conditions, Result, StorableResult
from gpumagic.system.text import plural


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device, and this process's part. Bytes; None where not known."""

    #: Held by live tensors, by the counters of torch's caching allocator.
    allocated: int | None = None
    #: Reserved by the allocator: live tensors and cache.
    reserved: int | None = None
    #: Highest ``allocated`` since the start or the user's last reset.
    peak: int | None = None
    free: int | None = None
    total: int | None = None
    #: Non-PyTorch memory of this process: the CUDA context, libraries' workspaces.
    outside: int | None = None
    #: Other processes.
    others: int | None = None
    name: str | None = None
    #: nvidia-smi's index.
    index: int | None = None
    #: Change of ``allocated`` and ``reserved`` since the previous report; None for the first.
    allocated_change: int | None = None
    reserved_change: int | None = None
    #: Whether this process has a CUDA context on the device; without one it holds no memory there.
    context: bool | None = None
    #: Reserved by the driver for itself: of ``total``, neither free nor in use.
    driver_reserved: int | None = None


@dataclass(frozen=True)
class MemoryReport(Result):
    """The current GPU memory: one `DeviceMemory` for each CUDA ordinal."""

    devices: Mapping[int, DeviceMemory] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Why there is no report, if there is none; one line.
    error: str | None = None
    #: Bytes of host memory that torch's allocator has pinned for live tensors and cache, and those
    #: of live tensors. None where torch does not count them (before 2.7).
    pinned: int | None = None
    pinned_active: int | None = None
    #: Whether torch uses CUDA in this process.
    in_use: bool = False

    def _blocks(self) -> list[Block]:
        if self.error is not None:
            return [Line.of(f"No GPU memory to show: {self.error}")]
        blocks = _table(self)
        changes = [
            f"cuda:{ordinal} {_changes(memory)}"
            for ordinal, memory in self.devices.items()
            if memory.allocated_change or memory.reserved_change
        ]
        if changes:
            blocks.append(Line.of("Since the last report: " + "; ".join(changes)))
        return [*blocks, *_details(self), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        return f"<MemoryReport: {plural(len(self.devices), 'device')}>"


@dataclass(frozen=True)
class DeviceMemoryDelta:
    """The change of one device's memory by a cell, by the allocator's counters. Bytes, exact."""

    #: Change of the bytes held by live tensors.
    allocated: int
    #: Change of the bytes reserved by the allocator.
    reserved: int
    #: Highest ``allocated`` during the cell, above its value at the start.
    peak: int
    #: Bytes held by live tensors at the end.
    allocated_now: int = 0
    #: Bytes reserved by the allocator at the end.
    reserved_now: int = 0
    #: Allocations that failed (out of memory) during the cell.
    ooms: int = 0
    #: Allocations that succeeded only after the cache was emptied.
    retries: int = 0


@dataclass(frozen=True)
class MemoryDelta(StorableResult):
    """The change of GPU memory by a cell: one `DeviceMemoryDelta` for each CUDA ordinal in use."""

    devices: Mapping[int, DeviceMemoryDelta] = field(default_factory=dict)
    #: True if the cell raised or was interrupted.
    partial: bool = False
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none; one line.
    error: str | None = None
    #: The machine and the versions; None for a result without a measurement.
    conditions: Conditions | None = None

    @property
    def says_something(self) -> bool:
        """Whether there is a change, or a reason for no figures, or a note."""
        return bool(self.error or self.notes or only_changed(self.devices))

    def _blocks(self) -> list[Block]:
        if self.error is not None:
            return [Line.of(f"GPU memory: not measured, {self.error}", "dim")]
        changed = only_changed(self.devices)
        if not changed:
            return [Line.of("GPU memory: no change"), *dim_lines(self.notes)]
        columns = [
            Column("Device"),
            Column("Allocated", "right"),
            Column("Peak above start", "right"),
            Column("Reserved", "right", rank=1),
            Column("Allocated now", "right", rank=2),
            Column("Reserved now", "right", rank=3),
        ]
        rows = [
            [
                Cell(f"cuda:{ordinal}", "strong"),
                Cell(bytes_(change.allocated, sign=True)),
                Cell(bytes_(change.peak, sign=True)),
                Cell(bytes_(change.reserved, sign=True)),
                Cell(bytes_(change.allocated_now), "dim"),
                Cell(bytes_(change.reserved_now), "dim"),
            ]
            for ordinal, change in changed.items()
        ]
        return [Grid(columns, rows), *_failures(changed), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        inner = ", ".join(f"{i}: {d.allocated:+d} B" for i, d in self.devices.items())
        return f"<MemoryDelta {inner or 'no device'}>"


#: The least pinned bytes that are worth a line.
_FEW_PINNED = 2**20


def _details(result: MemoryReport) -> list[Block]:
    """Return lines on the driver's own memory and pinned host memory."""
    blocks: list[Block] = []
    reserved = {i: m.driver_reserved for i, m in result.devices.items() if m.driver_reserved}
    if reserved:
        listed = "; ".join(f"cuda:{i} {bytes_(size)}" for i, size in reserved.items())
        text = f"Reserved by the driver, in the total and not usable: {listed}"
        blocks.append(Line.of(text, "dim"))
    if result.pinned is not None and result.pinned >= _FEW_PINNED:
        live = f"{bytes_(result.pinned_active)} by live tensors"
        blocks.append(Line.of(f"Pinned host memory: {bytes_(result.pinned)}, {live}"))
    elif result.pinned is None and result.in_use:
        blocks.append(Line.of(f"Pinned host memory: {DASH} (not counted by this torch)", "dim"))
    return blocks


#: A narrow terminal drops columns from the last one on.
_COLUMNS = (
    Column("Device"),
    Column("Free / total", "right"),
    Column("Allocated", "right"),
    Column("Reserved", "right", rank=1),
    Column("Others", "right", rank=2),
    Column("Peak", "right", rank=3),
    Column("Non-PyTorch", "right", rank=4),
    Column("GPU", "right", rank=5),
)


def _table(result: MemoryReport) -> list[Block]:
    """Return the table, and above it the devices' name if it is the same for all."""
    columns = [*_COLUMNS]
    rows = [_report_row(ordinal, memory) for ordinal, memory in result.devices.items()]
    names = [memory.name for memory in result.devices.values()]
    blocks: list[Block] = []
    if len({*names}) == 1 and names[0] is not None:
        count = f"{len(names)} × " * (len(names) > 1)
        blocks.append(Line.of(f"{count}{names[0]}", "strong"))
    elif any(names):
        columns.append(Column("Name", rank=6))
        for row, name in zip(rows, names, strict=True):
            row.append(Cell(name or DASH, "dim"))
    return [*blocks, Grid(columns, rows), *legend(_uses(m) for m in result.devices.values())]


def _uses(memory: DeviceMemory) -> Mapping[Use, float] | None:
    return use_of(
        memory.total,
        None if memory.free is None else memory.free + (memory.driver_reserved or 0),
        allocated=memory.allocated,
        reserved=memory.reserved,
        outside=memory.outside,
        others=memory.others,
    )


def _report_row(ordinal: int, memory: DeviceMemory) -> list[Cell]:
    idle: Style = "" if memory.context else "dim"
    used = None
    if memory.free is not None and memory.total:
        used = 1 - memory.free / memory.total
    free = f"{bytes_(memory.free)} / {bytes_(memory.total)}"
    return [
        Cell(f"cuda:{ordinal}", idle or "strong"),
        marked_memory(free, used, stack=_uses(memory)),
        Cell(bytes_(memory.allocated), idle),
        Cell(bytes_(memory.reserved), idle),
        Cell(bytes_(memory.others)),
        Cell(bytes_(memory.peak), idle),
        Cell(bytes_(memory.outside), idle),
        Cell(DASH if memory.index is None else str(memory.index)),
    ]


def _changes(memory: DeviceMemory) -> str:
    parts = (("allocated", memory.allocated_change), ("reserved", memory.reserved_change))
    return ", ".join(f"{name} {bytes_(value, sign=True)}" for name, value in parts if value)


def only_changed(devices: Mapping[int, DeviceMemoryDelta]) -> dict[int, DeviceMemoryDelta]:
    """Return those of the devices whose memory changed or peaked."""
    return {
        ordinal: d
        for ordinal, d in devices.items()
        if d.allocated or d.reserved or d.peak or d.ooms or d.retries
    }


def _failures(changed: dict[int, DeviceMemoryDelta]) -> list[Block]:
    blocks: list[Block] = []
    for ordinal, change in changed.items():
        if change.ooms:
            count = plural(change.ooms, "allocation")
            blocks.append(Line.of(f"cuda:{ordinal}: out of memory, {count} failed", "bad"))
        if change.retries:
            text = f"{plural(change.retries, 'allocation')} tried again after emptying the cache"
            blocks.append(Line.of(f"cuda:{ordinal}: {text}", "warn"))
    return blocks
