"""Timings side by side, as blocks."""

from __future__ import annotations

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, Style
from gpumagic.render.units import seconds
from gpumagic.results import Compared, Comparison

_VERDICTS: dict[str | None, tuple[str, Style]] = {
    "faster": ("faster", "good"),
    "slower": ("slower", "warn"),
    "noise": ("within the noise", "dim"),
    None: ("", "dim"),
}


def comparison(result: Comparison) -> list[Block]:
    """The blocks that show ``result``: a row a timing, the compared times with bars."""
    slowest = max(result.sample(entry).median for entry in result)
    columns = (
        Column("name"),
        Column("GPU", "right"),
        Column("wall", "right", rank=1),
        Column("IQR", "right", rank=3),
        Column("× " + result.baseline, "right"),
        Column("95 % within", "right", rank=2),
        Column(""),
    )
    rows = [_row(result, entry, slowest) for entry in result]
    return [Grid(columns, rows), *(Line.of(note, "dim") for note in result.notes)]


def _row(result: Comparison, entry: Compared, slowest: float) -> tuple[Cell, ...]:
    timing = entry.timing
    compared = result.sample(entry)
    bar = compared.median / slowest if slowest > 0 else None
    figures = {"gpu": seconds(timing.gpu.median if timing.gpu else None)}
    figures["gpu"] = "≤ " * timing.gpu_at_most + figures["gpu"]
    figures["wall"] = seconds(timing.wall.median)
    cells = {
        name: Cell(figure, "strong" if name == result.quantity else "")
        for name, figure in figures.items()
    }
    cells[result.quantity] = Cell(figures[result.quantity], "strong", bar)
    verdict, style = _VERDICTS[entry.verdict]
    is_baseline = entry is result.entries[0]
    within = "" if entry.interval is None else "{:.3g}–{:.3g}".format(*entry.interval)
    return (
        Cell(entry.name),
        cells["gpu"],
        cells["wall"],
        Cell(seconds(compared.iqr) if len(compared.all) > 1 else "–", "dim"),
        Cell("1" if is_baseline else "–" if entry.ratio is None else f"{entry.ratio:.3g}"),
        Cell(within, "dim"),
        Cell("baseline" if is_baseline else verdict, "dim" if is_baseline else style),
    )
