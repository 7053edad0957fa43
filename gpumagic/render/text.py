"""Blocks as text, drawn by rich: in a terminal, a log, or a notebook's plain-text fallback."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from io import StringIO

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from gpumagic.render.blocks import Block, Cell, Grid, Line, bounded
from gpumagic.system.text import harmless

_STYLES = {
    "": "",
    "dim": "dim",
    "strong": "bold",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "code": "",
}
_BAR_WIDTH = 8
#: The width of text that is not printed to a terminal.
_COLUMNS = 80
_GAP = "  "


def render(blocks: Sequence[Block], *, width: int | None = None, color: bool = False) -> str:
    """Return the blocks as text without trailing blanks; ``width`` defaults to `columns`."""
    buffer, width = StringIO(), width or columns()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        force_jupyter=False,
        soft_wrap=False,
    )
    for block in bounded(blocks):
        drawn = _line(block) if isinstance(block, Line) else _table(block, width)
        console.print(drawn, soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).strip("\n")


def columns() -> int:
    """Return the width of text: ``COLUMNS`` if set, else the width of the terminal printed to.

    A kernel prints to no terminal: the one in which its server was started shows no output.
    """
    is_set = os.environ.get("COLUMNS", "").isdecimal()
    if is_set or sys.stdout is sys.__stdout__:
        return shutil.get_terminal_size((_COLUMNS, 25)).columns
    return _COLUMNS


def screen() -> tuple[int, int]:
    """Return columns and rows of the terminal printed to; 80 and 24 where there is none."""
    rows = shutil.get_terminal_size((_COLUMNS, 24)).lines if sys.stdout.isatty() else 24
    return columns(), rows


def fold(text: str, width: int) -> list[str]:
    """Return the rows that a text takes in a terminal of ``width`` columns; blanks may go."""
    rows: list[str] = []
    for line in text.split("\n"):
        if cell_len(line) <= width:
            rows.append(line)
            continue
        indent = "  " if width > 20 else ""
        for piece in textwrap.wrap(line, width, subsequent_indent=indent):
            rows += [piece] if cell_len(piece) <= width else chop_cells(piece, width)
    return rows


def _line(line: Line) -> Text:
    return Text.assemble(*((harmless(part.text), _STYLES[part.style]) for part in line.parts))


def _cell(cell: Cell) -> Text:
    content = Text(harmless(cell.text), _STYLES[cell.style])
    if cell.bar is None:
        return content
    filled = round(min(max(cell.bar, 0.0), 1.0) * _BAR_WIDTH)
    bar = Text("█" * filled, _STYLES[cell.style])
    bar.append("░" * (_BAR_WIDTH - filled), "dim")
    return bar.append(" ").append(content)


def _table(grid: Grid, width: int) -> Text:
    """Return the table in ``width`` columns of text, and below it the headers of dropped columns.

    Columns that can be shortened are, before any is dropped; the highest ranks are dropped first.

    Laid out here, since rich's own table measures every cell several times: 20 ms for a table of
    8 devices.
    """
    headers = [harmless(column.header) if grid.header else "" for column in grid.columns]
    columns = [
        [Text(header, "bold"), *(_cell(row[i]) for row in grid.rows)]
        for i, header in enumerate(headers)
    ]
    widths = [max(cell.cell_len for cell in column) for column in columns]
    least = [min(w, c.least or w) for w, c in zip(widths, grid.columns, strict=True)]
    shown: list[int] = []
    for highest_rank in sorted({column.rank for column in grid.columns}, reverse=True):
        shown = [i for i, column in enumerate(grid.columns) if column.rank <= highest_rank]
        gaps = len(_GAP) * (len(shown) - 1)
        if sum(least[i] for i in shown) + gaps <= width:
            break
    else:  # not even those of rank 0 fit: shorten the widest
        least[max(shown, key=lambda i: widths[i])] = 1
    for i in sorted(shown, key=lambda i: widths[i], reverse=True):
        excess = sum(widths[i] for i in shown) + gaps - width
        widths[i] -= min(max(excess, 0), widths[i] - least[i])
    for i in shown:
        for cell in columns[i]:
            cell.truncate(widths[i], overflow="ellipsis")
            cell.align(grid.columns[i].align, widths[i])
    lines = [Text(_GAP).join(columns[i][row] for i in shown) for row in range(len(grid.rows) + 1)]
    if not grid.header:
        return Text("\n").join(lines[1:])
    lines.insert(1, Text("─" * lines[0].cell_len))
    dropped = [header for i, header in enumerate(headers) if i not in shown and header]
    if dropped:
        lines.append(Text(f"not shown, the output is too narrow: {', '.join(dropped)}", "dim"))
    return Text("\n").join(lines)
