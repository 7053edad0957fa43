"""Render blocks as text, with rich: for a terminal, a log, or a notebook's plain-text output."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import zip_longest

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from gpumagic.render.blocks import (
    USES,
    Block,
    Callout,
    Cell,
    Column,
    Fold,
    Grid,
    Legend,
    Line,
    Use,
    bounded,
    filled,
    stack_slots,
)
from gpumagic.render.source_code import TERMINAL
from gpumagic.system.text import harmless

_STYLES = {
    "": "",
    "dim": "dim",
    "strong": "bold",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "code": "",
    "command": "bold",
}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_WIDTH, _STACK_WIDTH = 8, 16
_USE_SIGNS: Mapping[Use, str] = {
    "allocated": "█",
    "cached": "▓",
    "outside": "▒",
    "others": "░",
    "unknown": "?",
}
#: For an output encoding that does not have these; as wide as they are but for three.
_ASCII = {
    **dict.fromkeys(_EIGHTHS[1:4], "."),
    **dict.fromkeys(_EIGHTHS[4:], "#"),
    **dict(zip("▓▒░■●├└┃─⋯", "%+:#*|`|-.", strict=True)),
    **dict(zip("…·×→✓✗µ°–\N{MINUS SIGN}", "~-x>vxu --", strict=True)),  # noqa: RUF001
    **{"≤": "<=", "≥": ">=", "±": "+-"},
}
#: The width of text that is not printed to a terminal.
_COLUMNS = 80
_GAP = "  "


def render(
    blocks: Sequence[Block], *, width: int | None = None, color: bool = False, wrap: bool = False
) -> str:
    """Return the blocks as text without trailing blanks; ``width`` defaults to `columns`.

    ``wrap`` breaks long lines between words, and indents the following rows.
    """
    buffer, width = StringIO(), width or columns()
    console = _console(buffer, width, color)
    for drawn in _drawn(tuple(bounded(blocks)), width, console if wrap else None, color):
        console.print(drawn, soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).strip("\n")


def _console(buffer: StringIO, width: int, color: bool) -> Console:
    return Console(
        file=buffer,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        force_jupyter=False,
        soft_wrap=False,
    )


def _drawn(
    blocks: Sequence[Block], width: int, console: Console | None, color: bool
) -> Iterator[Text]:
    """Yield the text of the blocks; with a console, long lines are wrapped."""
    for block in blocks:
        if isinstance(block, Callout):
            edge = Text("┃ ", _STYLES[block.style])
            for inner in _drawn(block.blocks, width - 2, console, color):
                for line in inner.split("\n", allow_blank=True):
                    yield edge + line
        elif isinstance(block, Fold):
            yield _wrapped(Text(harmless(block.summary)), width, console)
        elif isinstance(block, Legend):
            uses = Text("  ".join(f"{_USE_SIGNS[use]} {USES[use]}" for use in block.uses), "dim")
            yield _wrapped(uses, width, console)
        elif isinstance(block, Grid):
            table, hidden = _table(block, width, color)
            yield table
            if hidden:
                text = f"hidden (too narrow): {', '.join(hidden)}"
                yield _wrapped(Text(text, "dim"), width, console)
        else:
            yield _wrapped(_line(block), width, console)


def _wrapped(line: Text, width: int, console: Console | None) -> Text:
    """Return a line broken between words; the following rows are indented by two more blanks."""
    if console is None or line.cell_len <= width:
        return line
    indent = len(line.plain) - len(line.plain.lstrip()) + 2
    lines = line.wrap(console, max(width - indent, 20), overflow="fold")
    return Text("\n" + " " * indent).join(lines)


def encodable(text: str, encoding: str | None) -> str:
    """Return the text with signs of ASCII for the characters that ``encoding`` does not have."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(char if _has(encoding, char) else _ASCII.get(char, "?") for char in text)
    return text


def _has(encoding: str, char: str) -> bool:
    try:
        char.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


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
    """Return the rows of a text in a terminal of ``width`` columns; blanks may be removed."""
    rows: list[str] = []
    for line in text.split("\n"):
        if "\x1b" in line:
            rows += _fold_colored(Text.from_ansi(line), line, width)
            continue
        if cell_len(line) <= width:
            rows.append(line)
            continue
        indent = "  " if width > 20 else ""
        for piece in textwrap.wrap(line, width, subsequent_indent=indent):
            rows += [piece] if cell_len(piece) <= width else chop_cells(piece, width)
    return rows


def _fold_colored(parsed: Text, line: str, width: int) -> list[str]:
    """Return the rows of a line in colours, of which ``parsed`` is the text."""
    if parsed.cell_len <= width:
        return [line]
    buffer = StringIO()
    console = _console(buffer, width, color=True)
    console.print(parsed.wrap(console, width, overflow="fold"), soft_wrap=True)
    return buffer.getvalue().splitlines()


def _line(line: Line) -> Text:
    return Text.assemble(*((harmless(part.text), _STYLES[part.style]) for part in line.parts))


def _cell(cell: Cell, color: bool) -> Text:
    if cell.code is not None and color:
        return Text.assemble(*((harmless(p.text), TERMINAL[p.kind]) for p in cell.code.parts))
    return Text(harmless(cell.text), _STYLES[cell.style])


def _fitted(cell: Text, width: int, *, wrap: bool) -> Iterator[Text]:
    """Yield the lines of a cell: one shortened line, or with ``wrap`` several."""
    if wrap and cell.cell_len > width:
        for line in textwrap.wrap(cell.plain, width, break_on_hyphens=False):
            yield Text(line, cell.style)
    else:
        cell.truncate(width, overflow="ellipsis")
        yield cell


def _bar(cell: Cell, width: int) -> Text:
    """Return a cell's bar in ``width`` columns of text; blanks if it has none."""
    if cell.stack is not None:
        return _stack(cell.stack, width)
    eighths = 0 if cell.bar is None else filled(cell.bar, 8 * width)
    full, part = divmod(eighths, 8)
    bar = "█" * full + (_EIGHTHS[part] if part else "")
    return Text(bar.ljust(width), _STYLES[cell.style])


def _bars(cells: Sequence[Cell]) -> list[Text] | None:
    """Return the bars of a column's cells, all of one width; None if it has none."""
    if not any(cell.has_bar for cell in cells):
        return None
    width = _STACK_WIDTH if any(cell.stack is not None for cell in cells) else _BAR_WIDTH
    return [_bar(cell, width) for cell in cells]


def _stack(stack: Mapping[Use, float], width: int) -> Text:
    """Return a bar of several parts, and blanks for free memory."""
    parts = stack_slots(stack, width)
    return Text("".join(_USE_SIGNS[use] * count for use, count in parts.items()).ljust(width))


def _table(grid: Grid, width: int, color: bool) -> tuple[Text, list[str]]:
    """Return the table in ``width`` columns of text, and the headers of dropped columns.

    Not by rich's own table, which measures every cell several times: 20 ms for a table of 8
    devices.
    """
    headers = [harmless(column.header) if grid.header else "" for column in grid.columns]
    columns = [_column(grid, i, Text(header, "bold"), color) for i, header in enumerate(headers)]
    widths = _widths(grid.columns, [max(map(_length, column)) for column in columns], width)
    shown = [*widths]
    lines: list[Text] = []
    for row in range(0 if grid.header else 1, len(grid.rows) + 1):
        cells = [
            [*_fitted(columns[i][row], widths[i], wrap=grid.columns[i].wrap and row > 0)]
            for i in shown
        ]
        for parts in zip_longest(*cells, fillvalue=None):
            texts = [Text() if part is None else part for part in parts]
            for i, text in zip(shown, texts, strict=True):
                text.align(grid.columns[i].align, widths[i])
            lines.append(Text(_GAP).join(texts))
    if not grid.header:
        return Text("\n").join(lines), []
    lines.insert(1, Text("─" * lines[0].cell_len))
    dropped = [header for i, header in enumerate(headers) if i not in shown and header]
    return Text("\n").join(lines), dropped


def _column(grid: Grid, i: int, header: Text, color: bool) -> list[Text]:
    """Return the cells of a column, the header first; bars are before the figures."""
    cells = [_cell(row[i], color) for row in grid.rows]
    bars = _bars([row[i] for row in grid.rows])
    if bars is not None:
        width = max(map(_length, cells))
        for cell in cells:
            cell.align(grid.columns[i].align, width)
        cells = [bar + Text(" ") + cell for cell, bar in zip(cells, bars, strict=True)]
    return [header, *cells]


def _length(cell: Text) -> int:
    return cell.cell_len


def _widths(columns: Sequence[Column], full: Sequence[int], width: int) -> dict[int, int]:
    """Return, by index, the widths of the columns that fit into ``width``; others are dropped.

    Columns are shortened to their least width before any is dropped; those of the highest rank are
    dropped first.
    """
    # Headers stay whole.
    headers = [cell_len(harmless(column.header)) if column.least else 0 for column in columns]
    least = [
        min(size, max(column.least or size, header))
        for size, column, header in zip(full, columns, headers, strict=True)
    ]
    shown: list[int] = []
    for highest_rank in sorted({column.rank for column in columns}, reverse=True):
        shown = [i for i, column in enumerate(columns) if column.rank <= highest_rank]
        gaps = len(_GAP) * (len(shown) - 1)
        if sum(least[i] for i in shown) + gaps <= width:
            break
    else:  # not even those of rank 0 fit: shorten the widest
        least[max(shown, key=lambda i: full[i])] = 1
    widths = {i: full[i] for i in shown}
    for i in sorted(shown, key=lambda i: full[i], reverse=True):
        excess = sum(widths.values()) + gaps - width
        widths[i] -= min(max(excess, 0), widths[i] - least[i])
    return widths
