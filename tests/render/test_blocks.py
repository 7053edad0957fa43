"""Blocks: lines, tables, and the limit of their number."""

from __future__ import annotations

from gpumagic.render.blocks import (
    ROWS,
    Cell,
    Column,
    Grid,
    Line,
    bounded,
    cut,
    dim_lines,
    few,
    shortened,
)


def test_lines() -> None:
    assert Line.of("x", "bad") == Line((Cell("x", "bad"),))
    assert dim_lines(["a", "b"]) == [Line.of("a", "dim"), Line.of("b", "dim")]


def test_shortened() -> None:
    assert shortened("12345", 5) == "12345"
    assert shortened("123456", 5) == "1234…"
    assert cut("123456", 5, "dim") == Cell("1234…", "dim", whole="123456")
    assert few(["a", "b", "c"], 2) == Cell("a, b and 1 more", whole="a, b, c")


def test_bounded() -> None:
    """The number of blocks and of rows is limited; a line has the number of omitted ones."""

    def grid(rows: int) -> Grid:
        return Grid((Column("A"),), [(Cell(str(i)),) for i in range(rows)])

    few = [grid(ROWS), Line.of("x")]
    assert list(bounded(few)) == few
    long = grid(ROWS + 3)
    cut, more = bounded([long])
    assert isinstance(cut, Grid)
    assert cut.rows == long.rows[:ROWS]
    assert more == Line.of("and 3 more", "dim")
    lines = [Line.of(str(i)) for i in range(ROWS + 2)]
    assert list(bounded(lines)) == [*lines[:ROWS], Line.of("and 2 more", "dim")]
