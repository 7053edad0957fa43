"""Blocks as HTML: the words of the text, escaped, in plain tables of the front end's style."""

from __future__ import annotations

import re

import pytest

from gpumagic.render.blocks import Block, Column, Figures, Fold, Grid, Line, Style, Styled, Use
from gpumagic.render.colors import BAR, STATES, USES
from gpumagic.render.html import render
from gpumagic.results.base import Result
from tests.render.test_text import BLOCKS, TEXT
from tests.support.drawing import check_drawing


class Drawn(Result):
    def _blocks(self) -> list[Block]:
        return BLOCKS


def test_it_has_the_words_of_the_text() -> None:
    check_drawing(Drawn(), TEXT, width=80)


def test_a_table_is_plain() -> None:
    """The front end's style sheet colours it; it scrolls where it is too wide."""
    grid = Grid((Column("A"), Figures("B<")), ((Styled("x", "code"), Styled("1", "dim")),))
    html = render([grid])
    assert "overflow-x" in html.partition("<table")[0]
    assert re.search(r'<th scope="col"[^>]*right[^>]*>B&lt;</th>', html)
    assert re.search(r"<td [^>]*right[^>]*><span [^>]*>1</span>", html), "a figure, and dim"
    assert "background" not in html
    assert "<thead>" not in render([Grid((Column(""), Figures("")), grid.rows)])
    assert "<table" not in render([Grid(grid.columns, ())]), "without rows there is none"


@pytest.mark.parametrize(
    ("style", "share", "parts", "label"),
    [
        ("", 0.25, ["0.250", "0.750"], "25 %"),
        ("warn", 2.0, ["2.000"], "100 %"),
        ("bad", -1.0, ["2.000"], "0 %"),
        ("", 0.0001, ["0.000", "1.000"], "0 %"),
    ],
)
def test_a_bar(style: Style, share: float, parts: list[str], label: str) -> None:
    """In the colour of its cell; empty only at 0, full only at 100 %; with a label."""
    html = render([Grid((Column(""),), ((Styled("x", style, share),),))])
    assert re.findall(r"flex:([\d.]+) 0 0;min-width:2px;", html) == parts
    assert f'role="img" aria-label="{label}"' in html
    assert STATES.get(style, BAR) in html


def test_bars_begin_at_the_same_place() -> None:
    """A slot of one width is left of every figure of the column, also where there is no bar."""
    rows = ((Styled("4 %", bar=0.04),), (Styled("66 %", bar=0.66),), (Styled("–"),))
    html = render([Grid((Figures(""),), rows)])
    slots = re.findall(r"<span [^>]*\bwidth:([\d.]+em)", html)
    assert len(slots) == 3
    assert len({*slots}) == 1


def test_a_stacked_bar() -> None:
    stack: dict[Use, float] = {"allocated": 0.5, "cached": 0.0, "others": 0.25}
    html = render([Grid((Column(""),), ((Styled("x", bar=stack),),))])
    assert 'aria-label="allocated 50 %, other processes 25 %, free 25 %"' in html
    assert [USES[use] in html for use in stack] == [True, False, True]


def test_what_is_shortened_has_the_whole_on_hover() -> None:
    html = render([Line((Styled("GPU-1…", whole='GPU-1"<2'), Styled("same", whole="same")))])
    assert '<span title="GPU-1&quot;&lt;2">GPU-1…</span><span>same</span>' in html


def test_a_fold_opens() -> None:
    html = render([Fold(Line.of("more <it>"), [Line.of("inner")])])
    assert "inner" in html
    assert re.search(r"<details.*more &lt;it&gt;.*</summary>.*</details>", html)
