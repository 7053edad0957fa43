"""How GPU memory is shown over the cells of a session."""

from __future__ import annotations

from collections.abc import Iterable

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line
from gpumagic.render.units import bytes_, seconds
from gpumagic.results import CellHolding, CellHoldings, CellLog, CellMemory, DeviceMemoryDelta
from gpumagic.system.text import plural

#: So many of the newest cells are shown, and so much of their first lines.
_SHOWN, _LONGEST = 60, 44


def cell_line(result: CellMemory) -> list[Block]:
    """One line: what the cell did on each device that it touched."""
    changed = result.changed
    if not changed:
        return [Line.of("GPU memory: no change", "dim")]
    groups: dict[str, list[int]] = {}
    for ordinal, delta in changed.items():
        groups.setdefault(_changes(delta), []).append(ordinal)
    parts = [Cell("GPU memory: ", "dim")]
    for i, (text, ordinals) in enumerate(groups.items()):
        each = " each" if len(ordinals) > 1 else ""
        parts.append(Cell(f"{' · ' if i else ''}cuda:{_ordinals(ordinals)}{each} {text}", "dim"))
        ooms = [ordinal for ordinal in ordinals if changed[ordinal].ooms]
        if ooms:
            parts.append(Cell(f" (out of memory: cuda:{_ordinals(ooms)})", "bad"))
    return [Line(parts)]


def _changes(delta: DeviceMemoryDelta) -> str:
    if delta.allocated or delta.peak or not delta.reserved:
        change = f"{bytes_(delta.allocated, sign=True)}, peak {bytes_(delta.peak, sign=True)}"
        return f"{change}, now {bytes_(delta.allocated_now)}"
    return f"reserved {bytes_(delta.reserved, sign=True)}, now {bytes_(delta.reserved_now)}"


def _ordinals(ordinals: Iterable[int]) -> str:
    """``0``, ``0,2`` or ``0-3``."""
    runs: list[list[int]] = []
    for ordinal in ordinals:
        if runs and runs[-1][-1] == ordinal - 1:
            runs[-1].append(ordinal)
        else:
            runs.append([ordinal])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def cell_log(result: CellLog) -> list[Block]:
    """The blocks of a `CellLog`."""
    if not result.cells:
        hint = "none has ended since" if result.watching else "'%gpumem on' begins to watch them"
        return [Line.of(f"No cells to show: {hint}")]
    columns = [
        Column("Cell", "right"),
        Column("First line"),
        # Without it the rows of several devices would be all alike.
        Column("Device", rank=0 if len({i for cell in result for i in cell.changed}) > 1 else 1),
        Column("Change", "right"),
        Column("Peak", "right"),
        Column("Allocated now", "right", rank=2),
        Column("Time", "right", rank=3),
    ]
    shown = result.cells[-_SHOWN:]
    rows = [row for cell in shown for row in _log_rows(cell)]
    blocks: list[Block] = [Grid(columns, rows)]
    hidden = len(result.cells) - len(shown)
    if hidden:
        text = f"{plural(hidden, 'earlier cell')} not shown here; -o returns all"
        blocks.append(Line.of(text, "dim"))
    if result.forgotten:
        blocks.append(Line.of(f"{result.forgotten} still earlier ones are forgotten", "dim"))
    return blocks


def _log_rows(cell: CellMemory) -> list[list[Cell]]:
    head = [
        Cell(_number(cell.number), "dim"),
        Cell(_short(cell.source), "bad" if cell.failed else ""),
    ]
    time = Cell(seconds(cell.seconds), "dim")
    changed = cell.changed
    if not changed:
        return [[*head, Cell(DASH, "dim"), *[Cell(DASH, "dim")] * 3, time]]
    rows = []
    for i, (ordinal, delta) in enumerate(changed.items()):
        trouble = " out of memory" if delta.ooms else ""
        rows.append(
            [
                *(head if i == 0 else [Cell("")] * 2),
                Cell(f"cuda:{ordinal}{trouble}", "bad" if trouble else ""),
                Cell(bytes_(delta.allocated, sign=True), "" if delta.allocated else "dim"),
                Cell(bytes_(delta.peak, sign=True), "" if delta.peak else "dim"),
                Cell(bytes_(delta.allocated_now), "dim"),
                time if i == 0 else Cell(""),
            ]
        )
    return rows


def _short(source: str) -> str:
    return source if len(source) <= _LONGEST else source[: _LONGEST - 1] + "…"


def _number(number: int | None) -> str:
    return DASH if number is None else f"[{number}]"


def holdings(result: CellHoldings) -> list[Block]:
    """The blocks of a `CellHoldings`."""
    columns = [
        Column("Device"),
        Column("Cell", "right"),
        Column("First line"),
        Column("Live", "right"),
        Column("Share"),
        Column("Blocks", "right", rank=1),
    ]
    rows: list[list[Cell]] = []
    for ordinal, held in result.devices.items():
        total = sum(h.bytes for h in held)
        rows += [_held(f"cuda:{ordinal}" if i == 0 else "", h, total) for i, h in enumerate(held)]
        if len(held) > 1:
            blocks = str(sum(h.blocks for h in held))
            rows.append(
                [
                    *(Cell(""), Cell(""), Cell("allocated", "dim")),
                    *(Cell(bytes_(total), "strong"), Cell(""), Cell(blocks, "dim")),
                ]
            )
    if not rows:
        return [Line.of("Nothing is allocated"), *(Line.of(n, "dim") for n in result.notes)]
    return [Grid(columns, rows), *(Line.of(n, "dim") for n in result.notes)]


def _held(device: str, held: CellHolding, total: int) -> list[Cell]:
    share = held.bytes / total
    known = held.number is not None
    return [
        Cell(device, "strong"),
        Cell(_number(held.number) if known else "", "dim"),
        Cell(_short(held.source), "" if known else "dim"),
        Cell(bytes_(held.bytes)),
        Cell(f"{share:.0%}", "dim", bar=share),
        Cell(str(held.blocks), "dim"),
    ]
