"""Blocks as text: the layout of tables, and the width."""

from __future__ import annotations

import os
import re
import sys

import pexpect
import pytest

from gpumagic.render.blocks import Callout, Cell, Column, Fold, Grid, Legend, Line, Use
from gpumagic.render.text import fold, render

GRID = Grid(
    (
        Column("Name"),
        Column("Used", "right"),
        Column("Load", rank=2),
        Column("Command", rank=1, least=8),
    ),
    (
        (Cell("one"), Cell("5"), Cell("50 %", bar=0.5), Cell("python train.py --long")),
        (Cell("second"), Cell("1,000"), Cell("", bar=None), Cell("java")),
    ),
)


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (
            80,
            """\
Name     Used  Load           Command
────────────────────────────────────────────────────
one         5  ████     50 %  python train.py --long
second  1,000                 java""",
        ),
        (
            40,
            """\
Name     Used  Load           Command
────────────────────────────────────────
one         5  ████     50 %  python tr…
second  1,000                 java""",
        ),
        (
            30,
            """\
Name     Used  Command
──────────────────────────────
one         5  python train.p…
second  1,000  java
hidden (too narrow): Load""",
        ),
        (
            20,
            """\
Name     Used
─────────────
one         5
second  1,000
hidden (too narrow): Load, Command""",
        ),
        (
            10,
            """\
Na…   Used
──────────
one      5
se…  1,000
hidden (too narrow): Load, Command""",
        ),
    ],
)
def test_a_table_by_width(width: int, text: str) -> None:
    """Columns are shortened, then dropped, the highest rank first; those of rank 0 stay."""
    assert render([GRID], width=width) == text


def test_a_column_is_not_made_narrower_than_its_header() -> None:
    grid = Grid((Column("A long header", least=4), Column("B")), ((Cell("x" * 30), Cell("y")),))
    lines = render([grid], width=20).splitlines()
    assert lines[0] == "A long header      B"
    assert render([grid], width=17).splitlines()[0] == "A long header   B"
    assert render([grid], width=16).splitlines()[0] == "A long header  B"


def test_a_table_without_headers() -> None:
    grid = Grid(
        (Column("Name"), Column("Used", rank=1)), ((Cell("x"), Cell("y" * 9)),), header=False
    )
    assert render([grid], width=20) == "x  yyyyyyyyy"
    assert render([grid], width=5) == "x"


def test_lines_of_several_styles() -> None:
    line = Line((Cell("a", "strong"), Cell(" b", "bad"), Cell(" c")))
    assert render([line, Line.of("  d  "), Line.of("")]) == "a b c\n  d"
    assert render([line], color=True) == "\x1b[1ma\x1b[0m\x1b[31m b\x1b[0m c"


def test_a_long_line_is_not_wrapped() -> None:
    assert render([Line.of("x " * 60)], width=20) == ("x " * 60).rstrip()


def test_bars_end_at_their_ends() -> None:
    """Eighths of a character: empty only at 0, full only at 100 %; the figures begin together."""
    shares = (-1.0, 0.0, 1e-9, 0.06, 0.3, 0.999999, 1.0, 7.0)
    rows = [(Cell("x", bar=share),) for share in (*shares, None)]
    lines = render([Grid((Column("H"),), rows)], width=80).splitlines()[2:]
    bars = ["", "", "▏", "▌", "██▍", "███████▉", "█" * 8, "█" * 8, ""]
    assert lines == [f"{bar:<8} x" for bar in bars]


@pytest.mark.parametrize(
    ("stack", "bar"),
    [
        ({"allocated": 0.5, "cached": 0.25}, "████████▓▓▓▓"),
        ({"allocated": 0.97, "others": 0.0}, "███████████████"),
        ({"allocated": 1.0}, "████████████████"),
        ({"allocated": 1e-9, "cached": 1e-9, "outside": 1e-9, "others": 0.9}, "░░░░░░░░░░░░░░"),
        ({"allocated": 1e-9, "cached": 2e-5, "outside": 6e-3}, "▒"),
        ({"others": 1.2}, "░░░░░░░░░░░░░░░░"),
        ({}, ""),
    ],
)
def test_a_stacked_bar(stack: dict[Use, float], bar: str) -> None:
    """The sum is right to a slot; what is used and what is free are visible, however little."""
    lines = render([Grid((Column("H"),), [(Cell("x", stack=stack),)])], width=80).splitlines()
    assert lines[2] == f"{bar:<16} x"


MEMORY = Grid(
    (Column("GPU"), Column("Memory used"), Column("Peak above start", "right"), Column("Code")),
    (
        (Cell("cuda:0"), Cell("30.0 GiB", bar=0.5), Cell("1.00 GiB"), Cell("y = model(x)")),
        (Cell("cuda:1"), Cell("0 B", bar=0.0), Cell("+512 MiB"), Cell("y = 1")),
    ),
)


@pytest.mark.parametrize(
    ("width", "first"),
    [
        (59, "cuda:0  ████     30.0 GiB          1.00 GiB  y = model(x)"),
        (56, "cuda:0  ███▌    30.0 GiB          1.00 GiB  y = model(x)"),
        (53, "cuda:0  ██   30.0 GiB          1.00 GiB  y = model(x)"),
        (50, "cuda:0  30.0 GiB            1.00 GiB  y = model(x)"),
        (44, "cuda:0  30.0 GiB      1.00 GiB  y = model(x)"),
        (40, "cuda:0  30.0 GiB     1.00 GiB  y = mode…"),
        (34, "cuda:0  30.0 GiB  1.00 GiB  y = m…"),
        (30, "cuda:0  30.0 GiB   1.00 GiB  …"),
    ],
)
def test_figures_outrank_bars_headers_and_texts(width: int, first: str) -> None:
    lines = render([MEMORY], width=width).splitlines()
    assert lines[2] == first
    assert all(len(line) <= width for line in lines)


def test_a_header_of_words_is_broken_where_its_cells_are() -> None:
    column = Column("Compared with the slow one", least=10, wrap=True)
    lines = render([Grid((Column("A"), column), [(Cell("x"), Cell("2.00× faster"))])], width=16)
    assert lines.splitlines() == [
        "A  Compared with",
        "   the slow one",
        "────────────────",
        "x  2.00× faster",
    ]


def test_headers_with_commas_are_told_apart() -> None:
    columns = (Column("A"), Column("Power, highest", rank=1), Column("Temp", rank=1))
    shown = render([Grid(columns, [[Cell("x" * 9)] * 3])], width=12)
    assert "hidden (too narrow): Power, highest; Temp" in shown


def test_callouts_folds_and_legends() -> None:
    callout = Callout([Line.of("a"), Grid((Column("A"), Column("B")), [(Cell("x"), Cell("y"))])])
    fold = Fold("2 more", [Line.of("inner")])
    text = render([callout, fold, Legend(["allocated", "others"])], width=40)
    assert text == "┃ a\n┃ A  B\n┃ ────\n┃ x  y\n2 more\n█ allocated  ░ other processes"


def test_a_long_line_is_broken_between_words_where_that_is_wanted() -> None:
    line = Line((Cell("  one two ", "strong"), Cell("three four five six seven")))
    assert render([line], width=24, wrap=True) == "  one two three four\n    five six seven"
    assert render([Callout([line])], width=26, wrap=True) == (
        "┃   one two three four\n┃     five six seven"
    )


def test_text_has_no_control_characters() -> None:
    grid = Grid((Column("\x1b[2J"),), ((Cell("a\x07\nb"),),))
    shown = render([grid, Line.of("\u202ex")], width=80)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert shown.splitlines()[2] == "a\ufffd b"


def test_only_what_is_printed_to_a_terminal_is_as_wide_as_that() -> None:
    """A kernel's output is not shown in the terminal that its server was started in."""
    source = (
        "import io, os, sys; from gpumagic.render.text import columns\n"
        "printed, real, sys.stdout = columns(), sys.stdout, io.StringIO()\n"
        "elsewhere = columns(); os.environ['COLUMNS'] = '33'; wanted = columns()\n"
        "print(printed, elsewhere, wanted, file=real)"
    )
    # Named, since readline may have written its size into what libc would hand on.
    env = dict(os.environ)
    python = pexpect.spawn(
        sys.executable, ["-c", source], env=env, dimensions=(24, 61), timeout=None
    )
    assert python.read().split() == [b"61", b"80", b"33"]
    python.close()


@pytest.mark.parametrize("width", [10, 20, 40])
def test_coloured_rows_are_folded_by_what_is_seen(width: int) -> None:
    line = Line((Cell("one two three", "good"), Cell(" four five six seven eight", "bad")))
    drawn = render([line], width=200, color=True)
    rows = fold(drawn, width)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in rows]
    assert " ".join("".join(f"{row} " for row in plain).split()) == (
        "one two three four five six seven eight"
    )
    assert all(len(row) <= width for row in plain)
    assert all(row.endswith("\x1b[0m") for row in rows)
    assert fold(drawn, 200) == [drawn]


def test_lines_of_a_table_are_broken_in_a_terminal() -> None:
    columns = [Column("A"), *[Column(f"column {i}", rank=1) for i in range(9)]]
    row = [Cell("x" * 8) for _ in columns]
    shown = render([Grid(columns, [row]), Legend(["allocated", "outside"])], width=30, wrap=True)
    assert "hidden (too narrow): column 0" in " ".join(shown.split())
    assert all(len(line) <= 30 for line in shown.splitlines())


def test_of_a_callout_the_bar_alone_has_its_colour() -> None:
    shown = render([Callout([Line.of("plain"), Line.of("strong", "strong")])], color=True)
    assert shown == "\x1b[31m┃ \x1b[0mplain\n\x1b[31m┃ \x1b[0m\x1b[1mstrong\x1b[0m"
