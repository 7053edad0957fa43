"""Render blocks as HTML for a notebook: plain tables, in the style and colours of the front end.

All text is escaped: other users choose the names of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from gpumagic.render import colors, units
from gpumagic.render.blocks import USES, Block, Callout, Column, Fold, Grid, Line, Style, Styled
from gpumagic.system.text import harmless

_STYLES: Mapping[str, str] = {
    "dim": "opacity:.75",
    "strong": "font-weight:600",
    "code": "font-family:var(--jp-code-font-family, monospace);white-space:pre-wrap",
    # One click selects a command.
    "command": "white-space:nowrap;user-select:all",
    **{style: colors.text(color) for style, color in {**colors.STATES, **colors.CODE}.items()},
}
#: Notes are as large as data: JupyterLab and others have tables smaller than text.
_FONT = "font-size:var(--jp-ui-font-size1, inherit)"
# In a narrow notebook bars give way to figures, and no table is wider than 700 pixels.
_WIDTH, _STACK_WIDTH = "width:5em;max-width:6vw", "width:12em;max-width:8vw"
_SWATCH = "display:inline-block;width:.7em;height:.7em;border-radius:2px;margin-right:.35em"


#: MathJax 3 (JupyterLab, Notebook 7) and 2 (Notebook 6, pages by nbconvert) pass over these: TeX in
#: another user's name would hide text and paint over the notebook.
_CLASSES = "gpumagic mathjax_ignore tex2jax_ignore"


def render(blocks: Sequence[Block]) -> str:
    """Return the blocks as one ``<div>``."""
    return f'<div class="{_CLASSES}" style="{_FONT}">{_blocks(blocks)}</div>'


def _blocks(blocks: Sequence[Block]) -> str:
    return "".join(map(_block, blocks))


def _block(block: Block) -> str:
    if isinstance(block, Grid):
        return _table(block) if block.rows else ""
    if isinstance(block, Callout):
        edge = f"border-left:4px solid {colors.STATES['bad']}"
        style = f"{edge};padding:.1em 0 .1em .8em;margin:.4em 0"
        return f'<div role="note" style="{style}">{_blocks(block.blocks)}</div>'
    if isinstance(block, Fold):
        # Beside the mark that opens it.
        summary = f'<div style="display:inline">{_parts(block.summary)}</div>'
        inner = f'<div style="margin-left:1.2em">{_blocks(block.blocks)}</div>'
        return f"<details><summary>{summary}</summary>{inner}</details>"
    return f'<div style="white-space:pre-wrap">{_parts(block)}</div>'


def _text(text: str) -> str:
    return escape(harmless(text))


def _style(*rules: str) -> str:
    joined = ";".join(filter(None, rules))
    return f' style="{joined}"' if joined else ""


def _parts(line: Line) -> str:
    return "".join(_swatch(part) + _part(part) for part in line.parts)


def _swatch(cell: Styled) -> str:
    """Return the piece of a bar before the text of a legend."""
    uses = cell.bar if isinstance(cell.bar, Mapping) else {}
    return "".join(f'<span style="{_SWATCH};background:{colors.USES[use]}"></span>' for use in uses)


def _part(cell: Styled) -> str:
    tag = "code" if cell.style == "command" else "span"
    hidden = cell.whole is not None and cell.whole.strip() != cell.text.strip()
    hover = f' title="{_text(str(cell.whole))}"' if hidden else ""
    content = "".join(_colored(*part) for part in cell.parts) or _text(cell.text)
    hang = ""
    if cell.style == "code":
        content, hang = _indented(content)
    style = _style(_STYLES.get(cell.style, ""), hang)
    return f"<{tag}{hover}{style}>{content}</{tag}>"


def _indented(code: str) -> tuple[str, str]:
    """Return code that keeps its indentation, also where it wraps; and the style for it."""
    rest = code.lstrip(" ")
    blanks = len(code) - len(rest)
    hang = f"display:inline-block;padding-left:{blanks}ch;text-indent:-{blanks}ch" if blanks else ""
    # nbconvert reduces a text of blanks alone to one, and with it the indentation.
    return "&nbsp;" * blanks + rest, hang


def _colored(text: str, style: Style) -> str:
    return f"<span{_style(_STYLES[style])}>{_text(text)}</span>" if style else _text(text)


def _table(grid: Grid) -> str:
    # A bar has its place in each row of the column, so that all are aligned.
    slots = [any(row[i].bar is not None for row in grid.rows) for i in range(len(grid.columns))]
    head = "".join(
        f'<th scope="col"{_style(f"text-align:{column.align}")}>{_text(column.header)}</th>'
        for column in grid.columns
    )
    rows = "".join(
        f"<tr>{''.join(map(_table_cell, row, grid.columns, slots))}</tr>" for row in grid.rows
    )
    # With JupyterLab's own style, columns have equal parts of too small a width: cells overlap.
    style = "table-layout:auto;font-size:inherit;font-variant-numeric:tabular-nums"
    header = f"<thead><tr>{head}</tr></thead>" if grid.has_header else ""
    return (
        f'<div style="overflow-x:auto"><table style="{style}">'
        f"{header}<tbody>{rows}</tbody></table></div>"
    )


def _table_cell(cell: Styled, column: Column[object], slot: bool) -> str:
    content = _part(cell)
    if slot:
        end = "space-between" if column.align == "right" else "flex-start"
        flex = f"display:flex;align-items:center;gap:.5em;justify-content:{end}"
        content = f'<span style="{flex}">{_bar(cell)}{content}</span>'
    # Texts wrap in a narrow notebook, figures do not.
    space = "normal" if column.wrap else "pre" if column.align == "right" else "pre-wrap"
    return f"<td{_style(f'text-align:{column.align}', f'white-space:{space}')}>{content}</td>"


def _bar(cell: Styled) -> str:
    """Return the slot of a bar with its parts; a label says the same. Without a bar it is empty."""
    if cell.bar is None:
        return f'<span style="flex:none;{_WIDTH}"></span>'
    if isinstance(cell.bar, Mapping):
        width, parts = _STACK_WIDTH, {colors.USES[use]: part for use, part in cell.bar.items()}
        shares = {USES[use]: part for use, part in cell.bar.items() if part > 0}
        shares["free"] = max(1 - sum(shares.values()), 0.0)
        label = ", ".join(f"{name} {units.share(part)}" for name, part in shares.items())
    else:
        width, parts = _WIDTH, {colors.STATES.get(cell.style, colors.BAR): cell.bar}
        label = units.share(min(max(cell.bar, 0.0), 1.0))
    parts["transparent"] = 1 - sum(parts.values())
    # However little it is, it is seen: neither empty nor full after rounding to pixels.
    drawn = "".join(
        f'<span style="flex:{part:.3f} 0 0;min-width:2px;background:{color}"></span>'
        for color, part in parts.items()
        if part > 0
    )
    style = f"flex:none;display:flex;{width};height:.7em;border-radius:2px;overflow:hidden"
    return (
        f'<span role="img" aria-label="{label}" title="{label}" '
        f'style="{style};background:{colors.TRACK}">{drawn}</span>'
    )
