"""Tables made of items."""

from __future__ import annotations

from gpumagic.render.blocks import Column, Figures, Grid, Styled


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
