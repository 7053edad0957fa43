"""Render blocks as text: for a terminal, a log, or a notebook's plain-text output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from itertools import zip_longest
from typing import Any

from gpumagic.render.blocks import USES, Block, Callout, Column, Fold, Grid, Style, Styled, Use
from gpumagic.render.rich_classes import Console, Text
from gpumagic.system.output import Output
from gpumagic.system.text import harmless

#: In the colours of the terminal's own palette.
_STYLES: Mapping[Style, str] = {
    "dim": "dim",
    "strong": "bold",
    "command": "bold",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "keyword": "magenta",
    "string": "green",
    "number": "cyan",
    "comment": "dim",
    "name": "blue",
}
_EIGHTHS = ("", *"▏▎▍▌▋▊▉")
#: The columns of a bar.
_BAR_WIDTH = 8
#: The columns of a bar with parts.
_STACK_WIDTH = 16
_USE_SIGNS: Mapping[Use, str] = dict(zip(USES, "█▓▒░?", strict=True))
_GAP = "  "
#: What is left of a text where nothing else fits.
_SHORTEST = 6


def render(
    blocks: Iterable[Block], *, width: int | None = None, color: bool = False, wrap: bool = False
) -> str:
    """Return the blocks as text without trailing blanks; ``width`` defaults to standard output's.

    ``wrap`` breaks long lines between words, and indents the following rows.
    """
    buffer, width = StringIO(), width or Output().width
    console = Console(
        file=buffer,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        force_jupyter=False,
    )
    lines = _lines(blocks, width, console)
    if wrap:
        lines = (_wrapped(line, width, console) for line in lines)
    console.print(Text("\n").join(lines), soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).strip("\n")


def drawn(blocks: Iterable[Block], output: Output, *, color: bool = False) -> str:
    """Return the text of blocks as an output can show it, in the characters that it has.

    In a terminal no word is broken. Elsewhere lines stay whole: they may be saved, searched or
    compared.
    """
    shown = render(blocks, width=output.width, color=color, wrap=output.is_terminal)
    return output.printable(shown)


def _lines(blocks: Iterable[Block], width: int, console: Console) -> Iterator[Text]:
    for block in blocks:
        if isinstance(block, Callout):
            edge = Text.assemble(("┃ ", "red"))  # not the style of what follows
            yield from (edge + line for line in _lines(block.blocks, width - 2, console))
        elif isinstance(block, Grid):
            yield from _table(block, width, console)
        elif isinstance(block, Fold):
            inner = block.blocks if block.in_text else ()
            yield from _lines([block.summary, *inner], width, console)
        else:
            yield Text().join(map(_part, block.parts))


def _part(cell: Styled) -> Text:
    """Return a part of a line; a legend's has a piece of a bar before it."""
    return _bar(cell, 1) + Text(" ") + _text(cell) if cell.bar is not None else _text(cell)


def _wrapped(line: Text, width: int, console: Console) -> Text:
    """Return a line broken between words; the following rows are indented by two more blanks."""
    if line.cell_len <= width:
        return line
    indent = len(line.plain) - len(line.plain.lstrip()) + 2
    rows = line.wrap(console, max(width - indent, 20), overflow="fold")
    return Text("\n" + " " * indent).join(rows)


class _Column:
    """A column of text: its header and cells, and the widths that they take and need at least."""

    def __init__(self, column: Column[Any], cells: Sequence[Styled], bars: bool) -> None:
        texts = [_text(cell) for cell in cells]
        if bars and any(cell.bar is not None for cell in cells):
            is_stack = any(isinstance(cell.bar, Mapping) for cell in cells)
            width = _STACK_WIDTH if is_stack else _BAR_WIDTH
            widest = max(text.cell_len for text in texts)
            for text in texts:
                text.align(column.align, widest)
            texts = [_bar(c, width) + Text(" ") + t for c, t in zip(cells, texts, strict=True)]
        self.column = column
        self.header = header = harmless(column.header)
        self.texts = [Text(header, "bold"), *texts]
        self.width = max(text.cell_len for text in self.texts)
        # A header stays whole, or wraps.
        named = max(map(len, header.split()), default=0) if column.wrap else len(header)
        self.least = min(self.width, max(column.least, named)) if column.least else self.width

    def fitted(self, text: Text, console: Console) -> Iterable[Text]:
        """Return the lines of a text in the column's width: one, cut, or several, broken."""
        wrap = self.column.wrap
        if text.cell_len <= self.width:  # the most: rich takes ten times as long for it
            fitted = text.copy()
            fitted.align(self.column.align, self.width)
            return [fitted]
        return text.wrap(
            console,
            self.width,
            justify=self.column.align,
            overflow="fold" if wrap else "ellipsis",
            no_wrap=not wrap,
        )


def _table(grid: Grid, width: int, console: Console) -> Iterator[Text]:
    """Yield the lines of a table in ``width`` columns of text, and the headers that are hidden.

    rich's own table takes twice the time, and has no bars and no columns that give way.
    """
    columns: list[_Column] = []
    for bars in (True, False):  # bars go before any column does
        columns = [
            _Column(column, [row[i] for row in grid.rows], bars)
            for i, column in enumerate(grid.columns)
        ]
        if not _too_wide([column.least for column in columns], width):
            break
    shown = _narrowed(columns, width)
    for row in range(0 if grid.has_header else 1, len(grid.rows) + 1):
        lines = [column.fitted(column.texts[row], console) for column in shown]
        for parts in zip_longest(*lines):
            yield Text(_GAP).join(
                part or Text(" " * column.width) for part, column in zip(parts, shown, strict=True)
            )
        if not row:
            yield Text("─" * (sum(c.width for c in shown) + len(_GAP) * (len(shown) - 1)))
    hidden = [column.header for column in columns if column not in shown and column.header]
    if hidden:
        yield Text(f"columns left out (too narrow): {', '.join(hidden)}", "dim")


def _narrowed(columns: Sequence[_Column], width: int) -> list[_Column]:
    """Return the columns that are shown, with the widths that they get.

    First, columns are shortened down to their least width. Then the columns of the highest rank are
    dropped. Where the columns of rank 0 alone do not fit, texts are cut, but no figures.
    """
    shown = [*columns]
    for rank in sorted({each.column.rank for each in columns}, reverse=True):
        shown = [each for each in shown if each.column.rank <= rank]
        if not _too_wide([each.least for each in shown], width):
            break
    else:
        for each in shown:
            if each.column.align == "left":
                each.least = min(each.least, _SHORTEST)
    for each in sorted(shown, key=lambda each: each.width, reverse=True):
        excess = _too_wide([one.width for one in shown], width)
        each.width -= min(excess, each.width - each.least)
    return shown


def _too_wide(widths: Sequence[int], width: int) -> int:
    """Return by how much columns of these widths are too wide; 0 if they fit."""
    return max(sum(widths) + len(_GAP) * (len(widths) - 1) - width, 0)


def _text(cell: Styled) -> Text:
    if cell.parts:
        return Text.assemble(*((text, _STYLES.get(style, "")) for text, style in cell.parts))
    return Text(harmless(cell.text), _STYLES.get(cell.style, ""))


def _bar(cell: Styled, width: int) -> Text:
    """Return a cell's bar, filled up with blanks to ``width`` columns of text."""
    if isinstance(cell.bar, Mapping):
        whole, passed, drawn = sum(cell.bar.values()), 0.0, ""
        for use, share in cell.bar.items():
            passed += share
            end = round(passed / (whole or 1.0) * _filled(whole, width))
            drawn = drawn.ljust(end, _USE_SIGNS[use])
        return Text(drawn.ljust(width))
    full, eighths = divmod(_filled(cell.bar or 0.0, 8 * width), 8)
    bar = "█" * full + _EIGHTHS[eighths]
    return Text(bar.ljust(width), _STYLES.get(cell.style, ""))


def _filled(share: float, steps: int) -> int:
    """Return how many of a bar's ``steps`` are filled: 0 only for 0, all only for 1."""
    if share <= 0:
        return 0
    return steps if share >= 1 else min(max(round(share * steps), 1), steps - 1)
