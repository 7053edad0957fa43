"""Source in colours: each line as a part of the whole."""

from __future__ import annotations

import re

from gpumagic.render import colors, html, text
from gpumagic.render.blocks import Column, Grid
from gpumagic.render.source_code import source_cells

LINES = ("def f(x):", '    """one', '    two <b>"""', "\treturn 1.5  # why\x1b\r", "", "x = 1")
CELLS = source_cells(LINES)
GRID = Grid((Column("Source"),), [[cell] for cell in CELLS])


def test_in_html() -> None:
    drawn = html.render([GRID])
    assert re.search(f"{re.escape(colors.text(colors.CODE['keyword']))}[^>]*>def</span>", drawn)
    string = colors.text(colors.CODE["string"])
    assert re.search(f"{re.escape(string)}[^>]*>    two &lt;b&gt;", drawn), (
        "a part of the text above"
    )
    assert "<b>" not in drawn
    assert "&nbsp;&nbsp;&nbsp;&nbsp;<span" in drawn, "exported HTML would lose blanks"
    assert "\x1b" not in drawn


def test_in_a_terminal_but_not_in_plain_text() -> None:
    assert "\x1b[35mdef\x1b[0m" in text.render([GRID], color=True)
    plain = text.render([GRID])
    assert "\x1b" not in plain
    assert "    return 1.5  # why" in plain
    assert ["".join(part for part, _ in cell.parts) for cell in CELLS] == [c.text for c in CELLS]


def test_a_wrapped_line_keeps_its_indentation() -> None:
    """In a narrow notebook a long line wraps: what follows begins below its own code."""
    cells = source_cells(("for x in y:", "    total += x"))
    drawn = html.render([Grid((Column("Source"),), [[cell] for cell in cells])])
    assert drawn.count("text-indent") == 1
