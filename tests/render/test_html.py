"""Blocks as HTML."""

from __future__ import annotations

import re

import pytest

from gpumagic.render.blocks import ROWS, Callout, Cell, Column, Fold, Grid, Legend, Line, Style, Use
from gpumagic.render.colors import STATES, USES
from gpumagic.render.html import render


def test_a_line() -> None:
    assert render([Line((Cell("a <b>", "strong"), Cell(" & c", "bad"), Cell("d")))]) == (
        '<div class="gpumagic" style="font-size:var(--jp-ui-font-size1, inherit)">'
        '<div style="white-space:pre-wrap;margin:.15em 0">'
        '<span style="font-weight:600">a &lt;b&gt;</span>'
        '<span style="color:color-mix(in srgb, currentColor 40%, #e85a5a)"> &amp; c</span>'
        "<span>d</span></div></div>"
    )


def test_a_table() -> None:
    """It scrolls where it is too wide, under its headers and beside its first column."""
    grid = Grid((Column("A"), Column("B<", "right")), ((Cell("x", "code"), Cell("1", "dim")),))
    html = render([grid])
    assert '<div style="display:flex;overflow-x:auto"><table' in html
    assert re.search(
        r'<th scope="col" style="text-align:left;white-space:pre;position:sticky;left:0;.*?">A<',
        html,
    )
    assert '<th scope="col" style="text-align:right;white-space:pre">B&lt;</th>' in html
    assert re.search(
        r'<th scope="row" style="text-align:left;white-space:pre;font-weight:normal;'
        r'position:sticky;left:0;background:inherit">'
        r'<span style="font-family:.*?;white-space:pre">x</span></th>',
        html,
    )
    assert '<td style="text-align:right;white-space:pre"><span style="opacity:.75">1' in html
    # What stays while the rest is scrolled must hide it: the rows have a background.
    assert html.count("<tr") == html.count('<tr style="background:var(--jp-layout-color0')
    assert "<thead>" not in render([Grid(grid.columns, grid.rows, header=False)])


@pytest.mark.parametrize(
    ("style", "share", "width", "label"),
    [
        ("", 0.25, "25%", "25 %"),
        ("warn", 2.0, "100%", "100 %"),
        ("bad", -1.0, "0%", "0 %"),
        ("", 0.0001, "2%", "0 %"),
        ("", 0.9999, "98%", "100 %"),
    ],
)
def test_a_bar(style: Style, share: float, width: str, label: str) -> None:
    """In the colour of its cell; empty only at 0, full only at 100 %; with a label."""
    html = render([Grid((Column(""),), ((Cell("x", style, share),),))])
    assert f"width:{width};" in html
    assert f'role="img" aria-label="{label}"' in html
    assert STATES.get(style, "#4a86c5") in html


def test_bars_begin_at_the_same_place() -> None:
    """A slot of one width is left of every figure of the column, also where there is no bar."""
    rows = ((Cell("4 %", bar=0.04),), (Cell("66 %", bar=0.66),), (Cell("–"),))
    html = render([Grid((Column("", "right"),), rows)])
    slots = re.findall(r"<span(?: [a-z-]+=\"[^\"]*\")* style=\"flex:none;width:5em", html)
    assert len(slots) == 3
    assert html.count("display:flex;align-items:center;gap:.5em;justify-content:space-between") == 3


def test_a_stacked_bar() -> None:
    stack: dict[Use, float] = {"allocated": 0.5, "cached": 0.0, "others": 0.25}
    html = render([Grid((Column(""),), ((Cell("x", stack=stack),),)), Legend(["allocated"])])
    assert 'aria-label="allocated 50 %, other processes 25 %, free 25 %"' in html
    assert html.count("min-width:2px") == 3
    assert f"flex:50 0 0;min-width:2px;background:{USES['allocated']}" in html
    assert f'background:{USES["allocated"]}"></span>allocated ' in html
    small: dict[Use, float] = {"allocated": 0.003, "cached": 0.003, "outside": 0.004}
    html = render([Grid((Column(""),), ((Cell("x", stack=small),),))])
    assert html.count("min-width:2px") == 2, "three parts below a slot are one slot together"
    assert f"flex:1 0 0;min-width:2px;background:{USES['outside']}" in html
    assert "flex:99 0 0" in html


def test_a_callout_and_what_is_folded() -> None:
    html = render([Callout([Line.of("a<")]), Fold("2 <more>", [Line.of("inner")])])
    assert f'<div role="note" style="border-left:4px solid {STATES["bad"]}' in html
    assert re.search(r"<details.*2 &lt;more&gt;.*</summary>.*inner.*</details>", html)


def test_what_is_shortened_has_the_whole_on_hover() -> None:
    html = render([Line((Cell("GPU-1…", whole='GPU-1"<2'), Cell("same", whole="same")))])
    assert '<span title="GPU-1&quot;&lt;2">GPU-1…</span><span>same</span>' in html


def test_every_text_is_harmless() -> None:
    html = render([Line.of("\x1b\u202e"), Grid((Column("\x07"),), ((Cell("\x1b", bar=0.5),),))])
    assert not {"\x1b", "\u202e", "\x07"} & {*html}
    assert html.count("\ufffd") == 4


def test_a_long_table_is_cut() -> None:
    grid = Grid((Column("A"),), [(Cell(str(i)),) for i in range(ROWS + 5)])
    html = render([grid])
    assert html.count("<tr") == ROWS + 1
    assert "and 5 more" in html
    folded = render([Fold("more", [grid])])
    assert folded.count("<tr") == ROWS + 1


def test_a_folded_line_opens() -> None:
    html = render([Line.of("short", "dim", "all of <it>\x1b")])
    assert "<summary>" in html
    assert html.index("short") < html.index("</summary>") < html.index("all of &lt;it&gt;\ufffd")
