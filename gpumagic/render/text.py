"""Render blocks as text: for a terminal, a log, or a notebook's plain-text output."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from gpumagic.render.blocks import Block, Callout, Cell, Fold, Grid, Style, Use, bounded
from gpumagic.system.text import harmless

#: In the colours of the terminal's own palette.
_STYLES: Mapping[Style, str] = {
    **{"dim": "dim", "strong": "bold", "command": "bold"},
    **{"good": "green", "warn": "yellow", "bad": "red"},
    **{"keyword": "magenta", "string": "green", "number": "cyan", "comment": "dim", "name": "blue"},
}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_WIDTH, _STACK_WIDTH = 8, 16
_USE_SIGNS: Mapping[Use, str] = {
    **{"allocated": "█", "cached": "▓", "outside": "▒", "others": "░", "unknown": "?"}
}
#: The width of text that is not printed to a terminal.
_COLUMNS = 80
_GAP = "  "
#: What is left of a text where nothing else fits.
_SHORTEST = 6


def render(
    blocks: Sequence[Block], *, width: int | None = None, color: bool = False, wrap: bool = False
) -> str:
    """Return the blocks as text without trailing blanks; ``width`` defaults to `columns`.

    ``wrap`` breaks long lines between words, and indents the following rows.
    """
    buffer, width = StringIO(), width or columns()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        force_jupyter=False,
    )
    for line in _lines(blocks, width):
        console.print(_wrapped(line, width, console) if wrap else line, soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).strip("\n")


def columns() -> int:
    """Return the width of text: ``COLUMNS`` if set, else the width of the terminal printed to.

    A kernel prints to no terminal: the one in which its server was started shows no output.
    """
    is_set = os.environ.get("COLUMNS", "").isdecimal()
    if is_set or sys.stdout is sys.__stdout__:
        return shutil.get_terminal_size((_COLUMNS, 25)).columns
    return _COLUMNS


def _lines(blocks: Sequence[Block], width: int) -> Iterator[Text]:
    for block in bounded(blocks):
        if isinstance(block, Callout):
            edge = Text.assemble(("┃ ", "red"))  # not the style of what follows
            yield from (edge + line for line in _lines(block.blocks, width - 2))
        elif isinstance(block, Grid):
            yield from _table(block, width)
        else:
            parts = (block.summary if isinstance(block, Fold) else block).parts
            yield Text().join(_part(part) for part in parts)


def _part(cell: Cell) -> Text:
    """Return a part of a line; a legend's has a piece of a bar before it."""
    return _bar(cell, 1) + Text(" ") + _text(cell) if cell.bar is not None else _text(cell)


def _wrapped(line: Text, width: int, console: Console) -> Text:
    """Return a line broken between words; the following rows are indented by two more blanks."""
    if line.cell_len <= width:
        return line
    indent = len(line.plain) - len(line.plain.lstrip()) + 2
    rows = line.wrap(console, max(width - indent, 20), overflow="fold")
    return Text("\n" + " " * indent).join(rows)


def _table(grid: Grid, width: int) -> Iterator[Text]:
    """Yield the lines of a table in ``width`` columns of text, and the headers that are hidden.

    Not by rich's own table, which measures every cell several times: 20 ms for a table of 8
    devices.
    """
    made = [_column(grid, i, bars=True) for i in range(len(grid.columns))]
    if _too_wide(_least(grid, made), width):  # bars go before any column does
        made = [_column(grid, i, bars=False) for i in range(len(grid.columns))]
    widths = _widths(grid, made, width)
    for row in range(0 if grid.header else 1, len(grid.rows) + 1):
        cells = [_fitted(made[i][row], widths[i], wrap=grid.columns[i].wrap) for i in widths]
        for parts in zip_longest(*cells):
            texts = [Text() if part is None else part.copy() for part in parts]
            for i, text in zip(widths, texts, strict=True):
                text.align(grid.columns[i].align, widths[i])
            yield Text(_GAP).join(texts)
        if not row:
            yield Text("─" * (sum(widths.values()) + len(_GAP) * (len(widths) - 1)))
    hidden = [
        harmless(c.header) for i, c in enumerate(grid.columns) if i not in widths and c.header
    ]
    if hidden and grid.header:
        comma = "; " if any("," in header for header in hidden) else ", "
        yield Text(f"hidden (too narrow): {comma.join(hidden)}", "dim")


def _column(grid: Grid, i: int, *, bars: bool) -> list[Text]:
    """Return the header and the cells of a column, with their bars left of the figures."""
    cells = [row[i] for row in grid.rows]
    texts = [_text(cell) for cell in cells]
    if bars and any(cell.bar is not None for cell in cells):
        is_stack = any(isinstance(cell.bar, Mapping) for cell in cells)
        width, widest = _STACK_WIDTH if is_stack else _BAR_WIDTH, max(map(_length, texts))
        for text in texts:
            text.align(grid.columns[i].align, widest)
        texts = [_bar(c, width) + Text(" ") + text for c, text in zip(cells, texts, strict=True)]
    return [Text(harmless(grid.columns[i].header) if grid.header else "", "bold"), *texts]


def _text(cell: Cell) -> Text:
    if cell.parts:
        return Text.assemble(*((text, _STYLES.get(style, "")) for text, style in cell.parts))
    return Text(harmless(cell.text), _STYLES.get(cell.style, ""))


def _bar(cell: Cell, width: int) -> Text:
    """Return a cell's bar in ``width`` columns of text; blanks if it has none, or for the rest."""
    if isinstance(cell.bar, Mapping):
        parts = _slots(cell.bar, width)
        return Text("".join(_USE_SIGNS[use] * n for use, n in parts.items()).ljust(width))
    full, part = divmod(0 if cell.bar is None else _filled(cell.bar, 8 * width), 8)
    bar = "█" * full + (_EIGHTHS[part] if part else "")
    return Text(bar.ljust(width), _STYLES.get(cell.style, ""))


def _filled(share: float, steps: int) -> int:
    """Return how many of a bar's ``steps`` are filled: 0 only for 0, all only for 1."""
    if share <= 0:
        return 0
    return steps if share >= 1 else min(max(round(share * steps), 1), steps - 1)


def _slots(stack: Mapping[Use, float], slots: int) -> dict[Use, int]:
    """Return how many of a bar's ``slots`` each use has: together as many as `_filled` says.

    A use of less than a slot may have none: its share is then in another's.
    """
    shares = {use: share for use, share in stack.items() if share > 0}
    whole = sum(shares.values())
    count = _filled(whole, slots)
    parts = {use: share / whole * count for use, share in shares.items()}
    found = {use: int(part) for use, part in parts.items()}
    rest = sorted(parts, key=lambda use: (parts[use] - found[use], parts[use]), reverse=True)
    for use in rest[: count - sum(found.values())]:
        found[use] += 1
    return {use: number for use, number in found.items() if number}


def _length(cell: Text) -> int:
    return cell.cell_len


def _too_wide(widths: Sequence[int], width: int) -> int:
    """Return by how much columns of these widths are too wide; 0 if they fit."""
    return max(sum(widths) + len(_GAP) * (len(widths) - 1) - width, 0)


def _widths(grid: Grid, made: Sequence[Sequence[Text]], width: int) -> dict[int, int]:
    """Return, by index, the widths of the columns that are shown.

    Columns that may be shortened are, down to their least width; then those of the highest rank are
    dropped. Where not even those of rank 0 fit, texts are cut, figures never.
    """
    full = [max(map(_length, column)) for column in made]
    least = _least(grid, made)
    shown = [*range(len(full))]
    for rank in sorted({column.rank for column in grid.columns}, reverse=True):
        shown = [i for i in shown if grid.columns[i].rank <= rank]
        if not _too_wide([least[i] for i in shown], width):
            break
    else:
        for i in shown:
            if grid.columns[i].align == "left":
                least[i] = min(least[i], _SHORTEST)
    widths = {i: full[i] for i in shown}
    for i in sorted(shown, key=lambda i: full[i], reverse=True):
        widths[i] -= min(_too_wide([*widths.values()], width), widths[i] - least[i])
    return widths


def _least(grid: Grid, made: Sequence[Sequence[Text]]) -> list[int]:
    """Return the widths to which the columns may be shortened: a header stays whole, or wraps."""
    found = []
    for column, (header, *cells) in zip(grid.columns, made, strict=True):
        full = max(map(_length, (header, *cells)))
        named = max(map(len, header.plain.split()), default=0) if column.wrap else header.cell_len
        found.append(min(full, max(column.least, named)) if column.least else full)
    return found


def _fitted(cell: Text, width: int, *, wrap: bool) -> list[Text]:
    """Return the lines of a cell: one shortened line, or with ``wrap`` several."""
    if wrap and cell.cell_len > width:
        broken = textwrap.wrap(cell.plain, width, break_on_hyphens=False)
        return [Text(line, cell.style) for line in broken]
    cell.truncate(width, overflow="ellipsis")
    return [cell]


def printable(text: str, encoding: str | None) -> str:
    """Return a text in the characters that an output's encoding has."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
