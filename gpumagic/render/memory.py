"""How GPU memory, and what a cell did to it, is shown."""

from __future__ import annotations

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, Style
from gpumagic.render.units import bytes_
from gpumagic.results import DeviceMemory, DeviceMemoryDelta, MemoryDelta, MemoryReport
from gpumagic.system.text import plural

#: From this share of a device's memory in use, the free memory is coloured.
_WARN, _BAD = 0.90, 0.97


def report(result: MemoryReport) -> list[Block]:
    """The blocks of a `MemoryReport`."""
    if result.error is not None:
        return [Line.of(f"No GPU memory to show: {result.error}")]
    columns = [
        Column("Device"),
        Column("GPU", "right", rank=5),
        Column("Name", rank=6),
        Column("Allocated", "right"),
        Column("Reserved", rank=1),
        Column("Peak", "right", rank=2),
        Column("Outside", "right", rank=4),
        Column("Others", "right", rank=3),
        Column("Free", "right"),
        Column("Total", "right", rank=3),
    ]
    rows = [_report_row(ordinal, memory) for ordinal, memory in result.devices.items()]
    blocks: list[Block] = [Grid(columns, rows)]
    changes = [
        f"cuda:{ordinal} {_changes(memory)}"
        for ordinal, memory in result.devices.items()
        if memory.allocated_change or memory.reserved_change
    ]
    if changes:
        blocks.append(Line.of("Since the last report: " + "; ".join(changes)))
    return [*blocks, *_kept_apart(result), *_notes(result.notes)]


def _kept_apart(result: MemoryReport) -> list[Block]:
    """What has a line of its own where there is any of it."""
    kinds = {
        "CUDA graphs' pools, of reserved": {i: d.graph_pools for i, d in result.devices.items()},
        "MemPools and pools shared by graphs, of reserved": {
            i: d.mem_pools for i, d in result.devices.items()
        },
        "Fragmentation, free within segments in use": {
            i: d.fragmented for i, d in result.devices.items()
        },
    }
    blocks: list[Block] = [
        Line.of(f"{kind}: " + "; ".join(f"cuda:{i} {bytes_(v)}" for i, v in held.items() if v))
        for kind, held in kinds.items()
        if any(held.values())
    ]
    if result.pinned:
        live = f"{bytes_(result.pinned_active)} by live tensors"
        blocks.append(Line.of(f"Pinned host memory: {bytes_(result.pinned)}, {live}"))
    elif result.pinned is None and result.in_use:
        blocks.append(Line.of(f"Pinned host memory: {DASH} (not counted by this torch)", "dim"))
    return blocks


def _report_row(ordinal: int, memory: DeviceMemory) -> list[Cell]:
    idle: Style = "" if memory.context else "dim"
    used = None
    if memory.free is not None and memory.total:
        used = 1 - memory.free / memory.total
    tone: Style = "" if used is None or used < _WARN else "warn" if used < _BAD else "bad"
    share = None
    if memory.reserved is not None and memory.total:
        share = memory.reserved / memory.total
    return [
        Cell(f"cuda:{ordinal}", idle or "strong"),
        Cell(DASH if memory.index is None else str(memory.index)),
        Cell(memory.name or DASH, "dim"),
        Cell(bytes_(memory.allocated), idle),
        Cell(bytes_(memory.reserved), idle, bar=share),
        Cell(bytes_(memory.peak), idle),
        Cell(bytes_(memory.outside), idle),
        Cell(bytes_(memory.others)),
        Cell(bytes_(memory.free), tone),
        Cell(bytes_(memory.total)),
    ]


def _changes(memory: DeviceMemory) -> str:
    parts = (("allocated", memory.allocated_change), ("reserved", memory.reserved_change))
    return ", ".join(f"{name} {bytes_(value, sign=True)}" for name, value in parts if value)


def delta(result: MemoryDelta) -> list[Block]:
    """The blocks of a `MemoryDelta`."""
    if result.error is not None:
        return [Line.of(f"GPU memory: not measured, {result.error}", "dim")]
    changed = {ordinal: change for ordinal, change in result.devices.items() if _any(change)}
    if not changed:
        return [Line.of("GPU memory: no change"), *_notes(result.notes)]
    columns = [
        Column("GPU memory"),
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
    return [Grid(columns, rows), *_trouble(changed), *_notes(result.notes)]


def _any(change: DeviceMemoryDelta) -> bool:
    return any((change.allocated, change.reserved, change.peak, change.ooms, change.retries))


def _trouble(changed: dict[int, DeviceMemoryDelta]) -> list[Block]:
    blocks: list[Block] = []
    for ordinal, change in changed.items():
        if change.ooms:
            what = plural(change.ooms, "allocation")
            blocks.append(Line.of(f"cuda:{ordinal}: out of memory, {what} failed", "bad"))
        if change.retries:
            what = plural(change.retries, "allocation")
            blocks.append(
                Line.of(f"cuda:{ordinal}: {what} tried again after emptying the cache", "warn")
            )
    return blocks


def _notes(notes: tuple[str, ...]) -> list[Block]:
    return [Line.of(note, "dim") for note in notes]
