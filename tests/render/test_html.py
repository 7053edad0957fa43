"""Blocks as HTML."""

from __future__ import annotations

from gpumagic.render.blocks import ROWS, Cell, Column, Grid, Line
from gpumagic.render.html import render


def test_a_line() -> None:
    assert render([Line((Cell("a <b>", "strong"), Cell(" & c", "bad"), Cell("d")))]) == (
        '<div class="gpumagic"><div style="white-space:pre-wrap;margin:.15em 0">'
        '<span style="font-weight:600">a &lt;b&gt;</span>'
        '<span style="color:var(--jp-error-color1, #d9363e)"> &amp; c</span>'
        "<span>d</span></div></div>"
    )


def test_a_table() -> None:
    grid = Grid((Column("A"), Column("B<", "right")), ((Cell("x", "code"), Cell("1", "dim")),))
    assert render([grid]) == (
        '<div class="gpumagic">'
        '<div style="overflow-x:auto"><table style="table-layout:auto;margin:.3em 0;'
        'font-variant-numeric:tabular-nums">'
        '<thead><tr><th style="text-align:left">A</th><th style="text-align:right">B&lt;</th></tr>'
        '</thead><tbody><tr><td style="text-align:left;white-space:nowrap">'
        '<span style="font-family:var(--jp-code-font-family, monospace);white-space:pre">x</span>'
        '</td><td style="text-align:right;white-space:nowrap"><span style="opacity:.65">1</span>'
        "</td></tr></tbody></table></div></div>"
    )
    assert "<thead>" not in render([Grid(grid.columns, grid.rows, header=False)])


def test_a_bar() -> None:
    """In the colour of its cell, and from 0 to 100 %."""
    for style, bar, width, color in (
        ("", 0.25, "25%", "--jp-brand-color1"),
        ("warn", 2.0, "100%", "--jp-warn-color1"),
        ("bad", -1.0, "0%", "--jp-error-color1"),
    ):
        html = render([Grid((Column(""),), ((Cell("x", style, bar),),))])  # type: ignore[arg-type]
        assert f"width:{width};" in html
        assert color in html


def test_every_text_is_harmless() -> None:
    html = render([Line.of("\x1b\u202e"), Grid((Column("\x07"),), ((Cell("\x1b", bar=0.5),),))])
    assert not {"\x1b", "\u202e", "\x07"} & {*html}
    assert html.count("\ufffd") == 4


def test_a_long_table_is_cut() -> None:
    grid = Grid((Column("A"),), [(Cell(str(i)),) for i in range(ROWS + 5)])
    html = render([grid])
    assert html.count("<tr>") == ROWS + 1
    assert "and 5 more" in html


def test_a_folded_line_opens() -> None:
    html = render([Line.of("short", "dim", "all of <it>\x1b")])
    assert "<summary>" in html
    assert html.index("short") < html.index("</summary>") < html.index("all of &lt;it&gt;\ufffd")
