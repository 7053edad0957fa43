"""Source in colours: each line as a part of the whole."""

from __future__ import annotations

from gpumagic.render import colors, html, text
from gpumagic.render.blocks import Cell, Column, Grid
from gpumagic.render.source_code import SourceCode

LINES = ("def f(x):", '    """one', '    two <b>"""', "\treturn 1.5  # why\x1b\r", "", "x = 1")
SOURCE = SourceCode(LINES)
GRID = Grid((Column("Source"),), tuple((Cell.of_code(SOURCE, i),) for i in range(len(LINES))))


def test_in_html() -> None:
    drawn = html.render([GRID])
    assert f'style="{colors.text(colors.CODE["keyword"].upper())}">def</span>' in drawn
    string = colors.text(colors.CODE["string"].upper())
    assert f'style="{string}">    two &lt;b&gt;' in drawn, "a part of the text above"
    assert "<b>" not in drawn
    assert "&nbsp;&nbsp;&nbsp;&nbsp;<span" in drawn, "exported HTML would lose blanks"
    assert "\x1b" not in drawn
    assert len(SOURCE.html) == len(LINES)


def test_in_a_terminal_but_not_in_plain_text() -> None:
    drawn = text.render([GRID], color=True)
    assert "\x1b[" in drawn
    assert "why\x1b\r" not in drawn
    plain = text.render([GRID])
    assert "\x1b" not in plain
    assert "    return 1.5  # why" in plain
    assert [line.plain for line in SOURCE.terminal][: len(LINES)] == SOURCE.lines


def test_a_long_source_is_drawn_without_colours() -> None:
    source = SourceCode(["x = 1"] * 50_000)
    grid = Grid((Column("Source"),), ((Cell.of_code(source, 0),),))
    assert "x = 1" in html.render([grid])
    assert "\x1b[3" not in text.render([grid], color=True)
