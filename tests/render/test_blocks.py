"""Blocks: tables made of items, and notes."""

from __future__ import annotations

from gpumagic.render.blocks import Cell, Column, Figures, Grid, Line


def test_a_table_of_items() -> None:
    """A column in which no row has anything is left out; what has no style is dim where told."""
    columns: list[Column[int]] = [
        Figures("N", str),
        Column("Nothing", lambda _: ""),
        Column("Odd", lambda n: Cell("odd", "warn") if n % 2 else ""),
    ]
    grid = Grid.of([1, 2], columns, dim=lambda n: n == 2)
    assert [column.header for column in grid.columns] == ["N", "Odd"]
    assert grid.rows == [[Cell("1"), Cell("odd", "warn")], [Cell("2", "dim"), Cell("")]]
    assert not Grid.of([], columns).rows
    assert Grid.of([("a", "b")], [Column("A"), Column("B")]).rows == [[Cell("a"), Cell("b")]]


def test_lines() -> None:
    assert Line.notes(("a", "b")) == [Line.of("a", "dim"), Line.of("b", "dim")]


def test_what_is_shortened_has_the_whole() -> None:
    assert Cell.cut("123456", 5, "dim") == Cell("1234…", "dim", whole="123456")
    assert Cell.few(["a", "b", "c"], 2) == Cell("a, b and 1 more", whole="a, b, c")
