"""Blocks as HTML for a notebook: a real table, in the colours of the front end's theme.

All text is escaped: names of processes and devices are chosen by others.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gpumagic.render import sparkline
from gpumagic.render.blocks import Block, Cell, Grid, Line, bounded
from gpumagic.system.text import harmless

# JupyterLab and Notebook 7 define the variables; elsewhere (VS Code, nbconvert, Colab) the
# fallbacks apply, legible on white and on black.
_COLORS = {
    "good": "var(--jp-success-color1, #2e9e44)",
    "warn": "var(--jp-warn-color1, #c77700)",
    "bad": "var(--jp-error-color1, #d9363e)",
}
_STYLES = {
    "": "",
    "dim": "opacity:.65",
    "strong": "font-weight:600",
    "code": "font-family:var(--jp-code-font-family, monospace);white-space:pre",
    **{name: f"color:{color}" for name, color in _COLORS.items()},
}


def render(blocks: Sequence[Block]) -> str:
    """Return the blocks as one ``<div>``."""
    inner = "".join(_line(b) if isinstance(b, Line) else _table(b) for b in bounded(blocks))
    return f'<div class="gpumagic">{inner}</div>'


def _text(text: str) -> str:
    return escape(harmless(text))


def _style(*rules: str) -> str:
    kept = ";".join(rule for rule in rules if rule)
    return f' style="{kept}"' if kept else ""


def _line(line: Line) -> str:
    parts = "".join(
        f"<span{_style(_STYLES[part.style])}>{_text(part.text)}</span>" for part in line.parts
    )
    style = "white-space:pre-wrap;margin:.15em 0"
    if not line.folded:
        return f'<div style="{style}">{parts}</div>'
    opened = f'<div style="margin-left:1.2em">{_text(line.folded)}</div>'
    return f'<details style="{style}"><summary>{parts}</summary>{opened}</details>'


def _table(grid: Grid) -> str:
    head = "".join(
        f"<th{_style(f'text-align:{column.align}')}>{_text(column.header)}</th>"
        for column in grid.columns
    )
    head = f"<thead><tr>{head}</tr></thead>" if grid.header else ""
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_style(f'text-align:{column.align}', 'white-space:nowrap')}>{_cell(cell)}</td>"
            for column, cell in zip(grid.columns, row, strict=True)
        )
        + "</tr>"
        for row in grid.rows
    )
    return (
        # JupyterLab's own style gives all columns a part of too small a width: cells overlap.
        '<div style="overflow-x:auto"><table style="table-layout:auto;margin:.3em 0;'
        f'font-variant-numeric:tabular-nums">{head}<tbody>{body}</tbody></table></div>'
    )


def _cell(cell: Cell) -> str:
    content = f"<span{_style(_STYLES[cell.style])}>{_text(cell.text)}</span>"
    if cell.spark is not None:
        content = sparkline.svg(cell.spark) + content
    if cell.bar is None:
        return content
    share = min(max(cell.bar, 0.0), 1.0) * 100
    color = _COLORS.get(cell.style, "var(--jp-brand-color1, #3b82c4)")
    return (
        '<span style="display:inline-block;width:5em;height:.7em;margin-right:.5em;'
        "vertical-align:baseline;border-radius:2px;"
        'background:var(--jp-border-color2, rgba(128,128,128,.35))">'
        f'<span style="display:block;width:{share:.0f}%;height:100%;border-radius:2px;'
        f'background:{color}"></span></span>{content}'
    )
