"""Render blocks as HTML for a notebook: tables in the colours of the front end's theme.

All text is escaped: other users choose the names of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from gpumagic.render import colors, sparkline, units
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
    Style,
    Use,
    bounded,
    stack_slots,
)
from gpumagic.render.source_code import CodeLine
from gpumagic.system.text import harmless

_STYLES: Mapping[Style, str] = {
    "": "",
    "dim": "opacity:.75",
    "strong": "font-weight:600",
    "code": "font-family:var(--jp-code-font-family, monospace);white-space:pre",
    "command": "",
    **{
        style: f"color:color-mix(in srgb, currentColor {colors.TEXT_SHARE}%, {color})"
        for style, color in colors.STATES.items()
    },
}
_CODE_STYLES = {
    kind: f"color:color-mix(in srgb, currentColor {colors.TEXT_SHARE}%, {color})"
    for kind, color in colors.CODE.items()
}
# Notes are as large as data: JupyterLab and others have tables smaller than text.
_FONT = "font-size:var(--jp-ui-font-size1, inherit)"
# A cell that stays in place while the others are scrolled needs an opaque background, so rows set
# one. JupyterLab's style sheet colours every second row.
_GROUND = "var(--jp-layout-color0, var(--vscode-notebook-outputContainerBackgroundColor, inherit))"
# The same where the theme names it; without a value, so that a rule that uses it has no effect.
_NAMED_GROUND = "var(--jp-layout-color0, var(--vscode-notebook-outputContainerBackgroundColor))"
_STRIPE = f"var(--jp-rendermime-table-row-background, {_GROUND})"
# In a narrow notebook bars give way to figures.
_WIDTH, _STACK_WIDTH = "width:5em;max-width:6vw", "width:12em;max-width:15vw"
#: The parts of a stacked bar: a smaller one would not be visible.
_SLOTS = 100
_STICKY = "position:sticky;left:0;background:inherit"
# At the right edge of what is wider than the notebook: a shadow that stays at the edge while the
# table is scrolled, and behind the table's end a cover of it, seen when there is no more to scroll.
_MORE = (
    '<span aria-hidden="true" style="position:sticky;right:0;flex:none;width:1.2em;'
    "pointer-events:none;background:linear-gradient(to right,transparent,color-mix(in srgb,"
    f'{_NAMED_GROUND} 55%,{colors.EDGE}))"></span>'
    '<span aria-hidden="true" style="position:relative;flex:none;width:1.2em;'
    f'margin-left:-1.2em;background:{_NAMED_GROUND}"></span>'
)


def render(blocks: Sequence[Block]) -> str:
    """Return the blocks as one ``<div>``."""
    return f'<div class="gpumagic" style="{_FONT}">{_blocks(tuple(bounded(blocks)))}</div>'


def _blocks(blocks: Sequence[Block]) -> str:
    return "".join(map(_block, blocks))


def _block(block: Block) -> str:
    if isinstance(block, Line):
        return _line(block)
    if isinstance(block, Grid):
        return _table(block)
    if isinstance(block, Callout):
        edge = colors.STATES.get(block.style, "currentColor")
        return (
            f'<div role="note" style="border-left:4px solid {edge};padding:.1em 0 .1em .8em;'
            f'margin:.4em 0">{_blocks(block.blocks)}</div>'
        )
    if isinstance(block, Fold):
        return (
            '<details style="margin:.15em 0"><summary style="cursor:pointer">'
            f'<div style="display:inline">{_text(block.summary)}</div></summary>'
            f"{_blocks(block.blocks)}</details>"
        )
    return _legend(block)


def _text(text: str) -> str:
    return escape(harmless(text))


def _style(*rules: str) -> str:
    joined = ";".join(filter(None, rules))
    return f' style="{joined}"' if joined else ""


def _part(cell: Cell) -> str:
    tag = "code" if cell.style == "command" else "span"
    hidden = cell.whole is not None and cell.whole.strip() != cell.text.strip()
    hover = "" if not hidden else f' title="{_text(str(cell.whole))}"'
    # One click selects a command.
    select = "white-space:nowrap;user-select:all" if cell.style == "command" else ""
    content = _text(cell.text) if cell.code is None else _code(cell.code)
    return f"<{tag}{hover}{_style(_STYLES[cell.style], select)}>{content}</{tag}>"


def _code(line: CodeLine) -> str:
    return "".join(
        f"<span{_style(_CODE_STYLES[part.kind])}>{_text(part.text)}</span>"
        if part.kind
        else _text(part.text)
        for part in line.parts
    )


def _line(line: Line) -> str:
    parts = "".join(map(_part, line.parts))
    style = "white-space:pre-wrap;margin:.15em 0"
    if not line.folded:
        return f'<div style="{style}">{parts}</div>'
    opened = f'<div style="margin-left:1.2em">{_text(line.folded)}</div>'
    return f'<details style="{style}"><summary>{parts}</summary>{opened}</details>'


def _legend(legend: Legend) -> str:
    swatch = "display:inline-block;width:.7em;height:.7em;border-radius:2px;margin:0 .35em 0 0"
    entries = "".join(
        f'<span style="margin-right:1em;white-space:nowrap"><span style="{swatch};'
        f'background:{colors.USES[use]}"></span>{USES[use]} </span>'
        for use in legend.uses
    )
    return f'<div style="margin:.15em 0">{entries}</div>'


def _table(grid: Grid) -> str:
    slots = [
        any(row[i].has_bar or row[i].spark for row in grid.rows) for i in range(len(grid.columns))
    ]
    head = "".join(
        f'<th scope="col"{_style(*_placed(column), _STICKY if i == 0 else "")}>'
        f"{_text(column.header)}</th>"
        for i, column in enumerate(grid.columns)
    )
    head = f'<thead><tr style="background:{_GROUND}">{head}</tr></thead>' if grid.header else ""
    body = "".join(
        f'<tr style="background:{_STRIPE if number % 2 else _GROUND}">'
        + "".join(
            _table_cell(cell, column, first=i == 0, slot=slots[i])
            for i, (cell, column) in enumerate(zip(row, grid.columns, strict=True))
        )
        + "</tr>"
        for number, row in enumerate(grid.rows)
    )
    return (
        # With JupyterLab's own style, columns have equal parts of too small a width: cells overlap.
        '<div style="display:flex;overflow-x:auto">'
        '<table style="table-layout:auto;margin:.3em 0;font-size:inherit;'
        'font-variant-numeric:tabular-nums">'
        f"{head}<tbody>{body}</tbody></table>{_MORE}</div>"
    )


def _placed(column: Column) -> list[str]:
    """Return how a column is aligned, and that it is not broken: what is indented stays so."""
    return [f"text-align:{column.align}", "" if column.wrap else "white-space:pre"]


def _table_cell(cell: Cell, column: Column, *, first: bool, slot: bool) -> str:
    rules = _placed(column)
    content = _part(cell)
    if slot:  # in every row, so that the bars are aligned
        end = "space-between" if column.align == "right" else "flex-start"
        flex = f"display:flex;align-items:center;gap:.5em;justify-content:{end}"
        picture = _bar(cell) if cell.spark is None else sparkline.svg(cell.spark)
        content = f'<span style="{flex}">{picture}{content}</span>'
    if first:
        return f'<th scope="row"{_style(*rules, "font-weight:normal", _STICKY)}>{content}</th>'
    return f"<td{_style(*rules)}>{content}</td>"


def _bar(cell: Cell) -> str:
    if cell.stack is not None:
        return _stack(cell.stack)
    if cell.bar is None:
        return f'<span style="flex:none;{_WIDTH}"></span>'
    share = min(max(cell.bar, 0.0), 1.0) * 100
    # Limits that remain visible after rounding to pixels: neither empty nor full.
    width = 0.0 if share <= 0 else 100.0 if share >= 100 else min(max(share, 2.0), 98.0)
    color = colors.STATES.get(cell.style, colors.BAR)
    return (
        f'<span role="img" aria-label="{share:.0f} %" style="flex:none;{_WIDTH};height:.7em;'
        f'border-radius:2px;background:{colors.TRACK}"><span style="display:block;height:100%;'
        f'width:{width:.0f}%;border-radius:2px;background:{color}"></span></span>'
    )


def _stack(stack: Mapping[Use, float]) -> str:
    shares = {use: share for use, share in stack.items() if share > 0}
    free = max(1 - sum(shares.values()), 0.0)
    label = ", ".join(f"{USES[use]} {units.share(part)}" for use, part in shares.items())
    label = f"{label}, free {units.share(free)}".removeprefix(", ")
    slots = stack_slots(stack, _SLOTS)
    parts = "".join(
        f'<span style="flex:{count} 0 0;min-width:2px;background:{colors.USES[use]}"></span>'
        for use, count in slots.items()
    )
    left = _SLOTS - sum(slots.values())
    rest = f'<span style="flex:{left} 0 0;min-width:2px"></span>' if left else ""
    return (
        f'<span role="img" aria-label="{label}" title="{label}" style="flex:none;display:flex;'
        f'{_STACK_WIDTH};height:.8em;border-radius:2px;overflow:hidden;background:{colors.TRACK}">'
        f"{parts}{rest}</span>"
    )
