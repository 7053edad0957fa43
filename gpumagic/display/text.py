"""Blocks as text, drawn by rich: in a terminal, a log, or a notebook's plain-text fallback."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gpumagic.display.grid import Block, Cell, Grid, Line

_STYLES = {
    "": "",
    "dim": "dim",
    "strong": "bold",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
}
_BAR_WIDTH = 8


def render(blocks: Sequence[Block], *, width: int | None = None, color: bool = False) -> str:
    """The blocks as text without trailing blanks; ``width`` defaults to the terminal's."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        force_jupyter=False,
        soft_wrap=False,
    )
    for block in blocks:
        if isinstance(block, Line):
            console.print(_line(block), soft_wrap=True)
        else:
            console.print(_table(block, console.width))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).strip("\n")


def _line(line: Line) -> Text:
    return Text.assemble(*((part.text, _STYLES[part.style]) for part in line.parts))


def _cell(cell: Cell) -> Text:
    content = Text(cell.text, _STYLES[cell.style])
    if cell.bar is None:
        return content
    filled = round(min(max(cell.bar, 0.0), 1.0) * _BAR_WIDTH)
    bar = Text("█" * filled, _STYLES[cell.style])
    bar.append("░" * (_BAR_WIDTH - filled), "dim")
    return bar.append(" ").append(content)


def _table(grid: Grid, width: int) -> RenderableType:
    """The table, without the columns that have no room (the highest ranks go first)."""
    ranks = sorted({column.rank for column in grid.columns}, reverse=True)
    for highest in ranks:
        kept = [i for i, column in enumerate(grid.columns) if column.rank <= highest]
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for i in kept:
            column = grid.columns[i]
            table.add_column(column.header, justify=column.align, no_wrap=True)
        for row in grid.rows:
            table.add_row(*(_cell(row[i]) for i in kept))
        if Console(width=10_000).measure(table).maximum <= width:
            break
    return table
