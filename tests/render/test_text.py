"""Blocks as text: each kind of block, the layout of tables, and the width."""

from __future__ import annotations

import pytest

from gpumagic.render.blocks import Block, Callout, Column, Figures, Fold, Grid, Line, Styled, Use
from gpumagic.render.text import render

GRID = Grid(
    (
        Column("Name"),
        Figures("Used"),
        Column("Load", rank=2),
        Column("Command", rank=1, least=8),
    ),
    (
        (Styled("one"), Styled("5"), Styled("50 %", bar=0.5), Styled("python train.py --long")),
        (Styled("second"), Styled("1,000"), Styled(""), Styled("java")),
    ),
)
#: One of each kind.
BLOCKS: list[Block] = [
    Line((Styled("a", "strong"), Styled(" b", "bad"), Styled(" c"))),
    GRID,
    Callout([Line.of("a"), Grid((Column("A"), Column("B")), [(Styled("x"), Styled("y"))])]),
    Grid((Figures(""),), [(Styled("1", bar={"allocated": 0.5, "others": 0.25}),)]),
    Line((Styled("allocated  ", bar={"allocated": 1.0}), Styled("others", bar={"others": 1.0}))),
    Fold(Line.of("2 more"), [Line.of("inner")]),
]
TEXT = """\
a b c
Name     Used  Load           Command
────────────────────────────────────────────────────
one         5  ████     50 %  python train.py --long
second  1,000                 java
┃ a
┃ A  B
┃ ────
┃ x  y
████████░░░░     1
█ allocated  ░ others
2 more"""


def test_each_kind_of_block() -> None:
    assert render(BLOCKS, width=80) == TEXT
    assert render(BLOCKS[:1], color=True) == "\x1b[1ma\x1b[0m\x1b[31m b\x1b[0m c"
    of_callout = render([Callout([Line.of("plain")])], color=True)
    assert of_callout == "\x1b[31m┃ \x1b[0mplain"


#: Texts are shortened, then bars go, then columns are dropped, the highest rank first.
BY_WIDTH = {
    40: """\
Name     Used  Load           Command
────────────────────────────────────────
one         5  ████     50 %  python tr…
second  1,000                 java""",
    30: """\
Name     Used  Load  Command
──────────────────────────────
one         5  50 %  python t…
second  1,000        java""",
    28: """\
Name     Used  Command
────────────────────────────
one         5  python train…
second  1,000  java
columns left out (too narrow): Load""",
}


@pytest.mark.parametrize("width", BY_WIDTH)
def test_a_table_by_width(width: int) -> None:
    shown = render([GRID], width=width)
    assert [line.rstrip() for line in shown.splitlines()] == BY_WIDTH[width].splitlines()


def test_what_cannot_be_dropped_is_cut_but_figures() -> None:
    rows = [(Styled("a long name"), Styled("1,000"))]
    shown = render([Grid((Column("Name"), Figures("Used")), rows)], width=14)
    assert shown.splitlines()[2] == "a long…  1,000"


def test_a_column_is_not_made_narrower_than_its_header() -> None:
    grid = Grid((Column("A long header", least=4), Column("B")), ((Styled("x" * 30), Styled("y")),))
    for width in (20, 17, 16):
        assert render([grid], width=width).splitlines()[0].split("  ")[0] == "A long header"


def test_a_cell_that_wraps_has_several_lines() -> None:
    grid = Grid((Column("A"), Column("B", least=6, wrap=True)), [(Styled("x"), Styled("one two"))])
    assert render([grid], width=9).splitlines()[2:] == ["x  one", "   two"]


def test_a_long_line_is_broken_between_words_where_that_is_wanted() -> None:
    line = Line((Styled("  one two ", "strong"), Styled("three four five six seven")))
    assert render([line], width=24) == "  one two three four five six seven"
    assert render([line], width=24, wrap=True) == "  one two three four\n    five six seven"


def test_bars_end_at_their_ends() -> None:
    """Eighths of a character: empty only at 0, full only at 100 %; the figures begin together."""
    shares = (-1.0, 0.0, 1e-9, 0.06, 0.3, 0.999999, 1.0, 7.0)
    rows = [(Styled("x", bar=share),) for share in (*shares, None)]
    lines = render([Grid((Column("H"),), rows)], width=80).splitlines()[2:]
    bars = ["", "", "▏", "▌", "██▍", "███████▉", "█" * 8, "█" * 8, ""]
    assert lines == [f"{bar:<8} x" for bar in bars]


@pytest.mark.parametrize(
    ("stack", "bar"),
    [
        ({"allocated": 0.97, "others": 0.0}, "███████████████"),
        ({"allocated": 1.0}, "████████████████"),
        ({"allocated": 1e-9, "cached": 1e-9, "outside": 1e-9, "others": 0.9}, "░░░░░░░░░░░░░░"),
        ({"others": 1.2}, "░░░░░░░░░░░░░░░░"),
        ({}, ""),
    ],
)
def test_a_stacked_bar(stack: dict[Use, float], bar: str) -> None:
    """The sum is right to a slot; what is used and what is free are visible, however little."""
    lines = render([Grid((Column("H"),), [(Styled("x", bar=stack),)])], width=80).splitlines()
    assert lines[2] == f"{bar:<16} x"
