"""How it is shown who holds GPU memory, and what was given back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line
from gpumagic.render.units import bytes_
from gpumagic.results import DeviceHolders, Freed, FreeStep, Holder, Holders, Site

#: So many rows are shown of a device; the rest is summed up.
_ROWS = 15


def holders(result: Holders) -> list[Block]:
    """The blocks of `Holders`."""
    if result.error is not None:
        return [Line.of(f"No GPU memory to tell of: {result.error}", "dim")]
    shown = {i: device for i, device in result.devices.items() if device.allocated}
    if not shown:
        return [Line.of("Nothing is allocated on any GPU"), *_notes(result.notes)]
    blocks: list[Block] = []
    for ordinal, device in shown.items():
        blocks += [table(f"cuda:{ordinal}", device), _sum(device)]
        hidden = _hidden(device)
        if hidden:
            blocks.append(Line.of(f"Nothing of their own, all shared: {_listed(hidden, 8)}", "dim"))
    return [*blocks, *_notes(result.notes)]


def table(title: str, device: DeviceHolders, rows: int = _ROWS) -> Grid:
    """The holders of one device, the largest first."""
    counted = [holder for holder in device.holders if holder.bytes]
    drawn = [row for holder in counted[:rows] for row in _rows(holder, device.allocated)]
    rest = counted[rows:]
    if rest:
        size = sum(holder.bytes for holder in rest)
        number = sum(holder.blocks for holder in rest)
        drawn.append(_plain(f"{len(rest)} more", size, device.allocated, number))
    known = device.sites[:rows]
    drawn += [_site(site, device.allocated) for site in known]
    unknown = device.unattributed - sum(site.bytes for site in known)
    if unknown:
        drawn.append(_plain("no name leads to it", unknown, device.allocated))
    return Grid(_columns(title), drawn)


def _columns(title: str) -> list[Column]:
    return [
        Column(title),
        Column("Bytes"),
        Column("Kind", rank=2),
        Column("Blocks", "right", rank=4),
        Column("Frees", "right", rank=3),
        Column("Also held by", rank=1),
    ]


def _rows(holder: Holder, whole: int) -> list[list[Cell]]:
    """A holder, and below it the parts that its memory plays, if they are several."""
    frees = "all" if holder.alone == holder.bytes else bytes_(holder.alone)
    first = [
        Cell(holder.name, "warn" if holder.pinned else "strong"),
        Cell(bytes_(holder.bytes), bar=holder.bytes / whole),
        Cell(_kind(holder), "dim"),
        Cell(str(holder.blocks), "dim"),
        Cell(frees, "dim"),
        Cell(_listed(holder.also, 3), "dim"),
    ]
    parts = sorted(holder.parts.items(), key=lambda item: -item[1])
    if len(parts) < 2:
        return [first]
    return [first, *(_plain(f"└ {part or 'tensors'}", size, whole) for part, size in parts)]


def _plain(name: str, size: int, whole: int, number: int | None = None) -> list[Cell]:
    blank = Cell("")
    count = Cell("" if number is None else str(number), "dim")
    return [Cell(name, "dim"), Cell(bytes_(size), "dim", size / whole), blank, count, blank, blank]


def _site(site: Site, whole: int) -> list[Cell]:
    return _plain(f"no name: {site.where}", site.bytes, whole, site.blocks)


def _kind(holder: Holder) -> str:
    """``module``, ``optimizer state``, ``function's closure``."""
    part = next(iter(holder.parts), "") if len(holder.parts) == 1 else ""
    if holder.kind in part:
        return part
    return f"{holder.kind}: {part}" if part else holder.kind


def _hidden(device: DeviceHolders) -> list[str]:
    """Who holds nothing of its own and is not named beside another either."""
    beside = {name for holder in device.holders for name in holder.also}
    return [
        holder.name
        for holder in device.holders
        if not holder.bytes and not holder.pinned and holder.name not in beside
    ]


def _sum(device: DeviceHolders) -> Line:
    """The column's sum: exactly what the allocator says is allocated."""
    parts = [
        ("your names", device.named),
        ("the notebook", device.pinned),
        ("no name", device.unattributed),
        ("rounding", device.rounding),
    ]
    kept = [f"{name} {bytes_(size)}" for name, size in parts if size]
    exact = f" ({device.allocated:,} B)" if device.allocated >= 1024 else ""
    return Line(
        (
            Cell(f"{bytes_(device.allocated)} allocated{exact}", "strong"),
            Cell(f" = {' + '.join(kept)}"),
        )
    )


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def freed(result: Freed) -> list[Block]:
    """The blocks of what was given back."""
    if result.error is not None:
        return [Line.of(f"Nothing to give back: {result.error}", "dim")]
    devices = [i for i in result.allocated_before if _moves(result, i)]
    verb = "would give back" if result.dry_run else "gave back"
    if not devices:
        last = "There is nothing" if result.dry_run else "There was nothing"
        return [Line.of(f"{last} to give back"), *_notes(result.notes)]
    blocks: list[Block] = []
    for ordinal in devices:
        columns = [Column(f"cuda:{ordinal} {verb}"), Column("Allocated", "right")]
        columns.append(Column("Reserved", "right"))
        rows = [_step(step, ordinal, result.dry_run) for step in result.steps]
        blocks += [Grid(columns, rows), _now(result, ordinal)]
    return [*blocks, *_notes(result.notes)]


def _moves(result: Freed, ordinal: int) -> bool:
    pairs = (
        (result.allocated_before, result.allocated_after),
        (result.reserved_before, result.reserved_after),
    )
    return any(before.get(ordinal) != after.get(ordinal) for before, after in pairs)


def _step(step: FreeStep, ordinal: int, dry_run: bool) -> list[Cell]:
    unknown = dry_run and step.what == "collect garbage"
    return [
        Cell(step.what),
        Cell(DASH if unknown else _given(step.allocated, ordinal)),
        Cell(DASH if unknown else _given(step.reserved, ordinal)),
    ]


def _given(by_ordinal: Mapping[int, int], ordinal: int) -> str:
    return bytes_(by_ordinal.get(ordinal, 0))


def _now(result: Freed, ordinal: int) -> Line:
    """``allocated 30.0 GiB → 2.00 GiB, reserved …``."""
    pairs = (
        ("allocated", result.allocated_before, result.allocated_after),
        ("reserved", result.reserved_before, result.reserved_after),
    )
    told = (f"{n} {bytes_(b.get(ordinal))} → {bytes_(a.get(ordinal))}" for n, b, a in pairs)
    return Line.of(", ".join(told), "" if result.dry_run else "good")


def _notes(notes: Iterable[str]) -> list[Block]:
    return [Line.of(note, "dim") for note in notes]
