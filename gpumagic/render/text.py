"""Render blocks as text, with rich: for a terminal, a log, or a notebook's plain-text output."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from gpumagic.render.blocks import (
    USES,
    Block,
    Callout,
    Cell,
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
_BAR_WIDTH, _STACK_WIDTH, _SHORTEST_BAR = 8, 16, 3
#: The width to which a text is shortened before a figure is.
_SHORTEST = 6
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
    **dict(zip("…·×→✓✗µ°–\N{MINUS SIGN}", "~-x>vxu --", strict=True)),
    **{"≤": "<=", "≥": ">=", "±": "+-", "≈": "~"},
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
        no_color=not color,
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
            edge = Text.assemble(("┃ ", _STYLES[block.style]))  # not the style of what follows
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
                comma = "; " if any("," in header for header in hidden) else ", "
                text = f"hidden (too narrow): {comma.join(hidden)}"
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


def _bar_width(cells: Sequence[Cell]) -> int:
    """Return the width of the bars of a column's cells; 0 if it has none."""
    if not any(cell.has_bar for cell in cells):
        return 0
    return _STACK_WIDTH if any(cell.stack is not None for cell in cells) else _BAR_WIDTH


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
    figures = [[_cell(row[i], color) for row in grid.rows] for i in range(len(headers))]
    bars = _bar_widths(grid, headers, figures, width)
    columns = [
        [Text(header, "bold"), *_with_bars(grid, i, figures[i], bars[i])]
        for i, header in enumerate(headers)
    ]
    widths = _widths(_sizes(grid, columns), width)
    shown = [*widths]
    lines: list[Text] = []
    heading = 1
    for row in range(0 if grid.header else 1, len(grid.rows) + 1):
        cells = [[*_fitted(columns[i][row], widths[i], wrap=grid.columns[i].wrap)] for i in shown]
        if row == 1:
            heading = len(lines)
        for parts in zip_longest(*cells, fillvalue=None):
            texts = [Text() if part is None else part for part in parts]
            for i, text in zip(shown, texts, strict=True):
                text.align(grid.columns[i].align, widths[i])
            lines.append(Text(_GAP).join(texts))
    if not grid.header:
        return Text("\n").join(lines), []
    lines.insert(heading, Text("─" * lines[0].cell_len))
    dropped = [header for i, header in enumerate(headers) if i not in shown and header]
    return Text("\n").join(lines), dropped


def _with_bars(grid: Grid, i: int, figures: Sequence[Text], width: int) -> Sequence[Text]:
    """Return the cells of a column with their bars before the figures, if these have a width."""
    if not width:
        return figures
    widest = max(map(_length, figures))
    for figure in figures:
        figure.align(grid.columns[i].align, widest)
    return [
        _bar(row[i], width) + Text(" ") + figure
        for row, figure in zip(grid.rows, figures, strict=True)
    ]


def _length(cell: Text) -> int:
    return cell.cell_len


class _Size(NamedTuple):
    """The widths that a column may have."""

    full: int
    #: The width to which it is shortened before other columns are dropped.
    least: int
    #: The width of its figures, that of text being of no matter, where nothing else fits.
    figures: int
    rank: int
    is_text: bool


def _sizes(grid: Grid, columns: Sequence[Sequence[Text]]) -> list[_Size]:
    sizes = []
    for i, (column, (header, *cells)) in enumerate(zip(grid.columns, columns, strict=True)):
        full = max(map(_length, (header, *cells)))
        # Headers stay whole, or are broken between words.
        words = header.plain.split() if column.wrap else [header.plain]
        named = max(map(cell_len, words), default=0) if column.least else 0
        is_text = column.align == "left" and not any(row[i].has_bar for row in grid.rows)
        figures = min(full, _SHORTEST) if is_text else max(map(_length, cells), default=0)
        least = min(full, max(column.least or full, named))
        sizes.append(_Size(full, least, min(figures, least), column.rank, is_text))
    return sizes


def _bar_widths(
    grid: Grid, headers: Sequence[str], figures: Sequence[Sequence[Text]], width: int
) -> list[int]:
    """Return the width of each column's bars, which give way before columns and figures do."""
    bars = [_bar_width([row[i] for row in grid.rows]) for i in range(len(headers))]
    if not any(bars):
        return bars
    columns = [
        [Text(header), *(Text(" " * (bar + 1 if bar else 0) + cell.plain) for cell in cells)]
        for header, cells, bar in zip(headers, figures, bars, strict=True)
    ]
    sizes = _sizes(grid, columns)
    for highest_rank in sorted({size.rank for size in sizes}, reverse=True):
        stay = [i for i, size in enumerate(sizes) if size.rank <= highest_rank]
        excess = sum(sizes[i].least for i in stay) + len(_GAP) * (len(stay) - 1) - width
        # A half of a bar gives way before a column is dropped, all of it before a figure is.
        if highest_rank and excess > sum(bars[i] - bars[i] // 2 for i in stay):
            continue
        for i in stay:
            if excess > 0 and bars[i]:
                least = bars[i] // 2 if highest_rank else 0
                narrower = max(bars[i] - excess, least)
                # A bar of one or two characters shows nothing.
                excess -= bars[i] - narrower
                bars[i] = narrower if narrower >= _SHORTEST_BAR else 0
        break
    return bars


def _widths(sizes: Sequence[_Size], width: int) -> dict[int, int]:
    """Return, by index, the widths of the columns that fit into ``width``; others are dropped.

    Columns are shortened to their least width before any is dropped; those of the highest rank are
    dropped first. Figures are shortened last.
    """
    least = [size.least for size in sizes]
    shown: list[int] = []

    def is_too_wide() -> bool:
        return sum(least[i] for i in shown) + len(_GAP) * (len(shown) - 1) > width

    for highest_rank in sorted({size.rank for size in sizes}, reverse=True):
        shown = [i for i, size in enumerate(sizes) if size.rank <= highest_rank]
        if not is_too_wide():
            break
    else:  # not even those of rank 0 fit: shorten headers and texts, then the widest
        for i in shown:
            least[i] = sizes[i].figures
        if is_too_wide():
            texts = [i for i in shown if sizes[i].is_text] or shown
            least[max(texts, key=lambda i: sizes[i].full)] = 1
    widths = {i: sizes[i].full for i in shown}
    for i in sorted(shown, key=lambda i: sizes[i].full, reverse=True):
        excess = sum(widths.values()) + len(_GAP) * (len(shown) - 1) - width
        widths[i] -= min(max(excess, 0), widths[i] - least[i])
    return widths
