"""Blocks: tables made of items, and notes."""

from __future__ import annotations

from gpumagic.render.blocks import Column, Figures, Grid, Line, Styled


def test_a_table_of_items() -> None:
    """A column in which no row has anything is left out; what has no style is dim where told."""
    grid = Grid.of(
        [1, 2],
        Figures("N", str),
        Column("Nothing", lambda _: ""),
        Column("Odd", lambda n: Styled("odd", "warn") if n % 2 else ""),
        dim=lambda n: n == 2,
    )
    assert [column.header for column in grid.columns] == ["N", "Odd"]
    assert grid.rows == [[Styled("1"), Styled("odd", "warn")], [Styled("2", "dim"), Styled("")]]
    assert not Grid.of([], Column("A")).rows


def test_lines() -> None:
    assert Line.notes(("a", "b")) == [Line.of("a", "dim"), Line.of("b", "dim")]


def test_what_is_shortened_has_the_whole() -> None:
    assert Styled.cut("123456", 5, "dim") == Styled("1234…", "dim", whole="123456")
    assert Styled.few(["a", "b", "c"], 2) == Styled("a, b and 1 more", whole="a, b, c")
