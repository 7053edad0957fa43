"""How long the cells took, as one line each and as a table of all."""

from __future__ import annotations

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line
from gpumagic.render.units import cpu_seconds, seconds
from gpumagic.results import CellTiming, TimingLog
from gpumagic.system.text import plural

#: So many cells are shown, the longest; and so much of their first lines.
_SHOWN, _LONGEST = 20, 44


def cell_line(result: CellTiming) -> list[Block]:
    """One dim line: GPU, wall and CPU time."""
    parts = []
    if result.used_gpu:
        devices = ", ".join(f"cuda:{i} {seconds(t)}" for i, t in result.per_device.items())
        several = f" ({devices})" if len(result.per_device) > 1 else ""
        parts.append(f"GPU {_gpu(result)}{several}")
    parts += [f"wall {seconds(result.wall)}", f"CPU {cpu_seconds(result.cpu)}"]
    if result.note is not None:
        parts.append(result.note)
    return [Line.of(" · ".join(parts), "dim")]


def _gpu(result: CellTiming) -> str:
    return "≤ " * (result.gpu_at_most and result.gpu is not None) + seconds(result.gpu)


def cell_log(result: TimingLog) -> list[Block]:
    """The sum of all cells, and the cells that took longest."""
    if not result.cells:
        hint = "none has ended since" if result.watching else "'%cudatime on' begins to"
        return [Line.of(f"No cell has been timed yet: {hint}", "dim")]
    longest = sorted(result.cells, key=lambda cell: -cell.wall)[:_SHOWN]
    columns = (
        Column("cell", "right"),
        Column("wall", "right"),
        Column("GPU", "right"),
        Column("CPU", "right", rank=1),
        Column("", rank=2),
    )
    rows = [_row(cell, longest[0].wall) for cell in longest]
    return [_sum(result), Grid(columns, rows), *_rest(result, len(longest))]


def _sum(result: TimingLog) -> Line:
    used = sum(cell.used_gpu for cell in result)
    count = plural(len(result), "cell")
    gpu = "≤ " * result.gpu_at_most + seconds(result.gpu)
    return Line(
        (
            Cell(f"{count}, {used:,} with GPU work: "),
            Cell(f"wall {seconds(result.wall)}, GPU {gpu}", "strong"),
            Cell(f", CPU {cpu_seconds(result.cpu)}"),
        )
    )


def _row(cell: CellTiming, longest: float) -> tuple[Cell, ...]:
    source = cell.source
    if len(source) > _LONGEST:
        source = source[: _LONGEST - 1] + "…"
    return (
        Cell(DASH if cell.cell is None else f"[{cell.cell}]", "bad" if cell.failed else ""),
        Cell(seconds(cell.wall), "strong", cell.wall / longest if longest else None),
        Cell(_gpu(cell)),
        Cell(cpu_seconds(cell.cpu)),
        Cell(source, "dim"),
    )


def _rest(result: TimingLog, shown: int) -> list[Line]:
    lines = []
    if len(result) > shown:
        lines.append(f"the {shown} longest are shown; .to_pandas() has all {len(result):,}")
    if result.forgotten:
        lines.append(f"{result.forgotten:,} older cells have been forgotten")
    return [Line.of(line, "dim") for line in lines]
