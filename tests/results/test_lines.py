"""The change of GPU memory by each line of a cell."""

from __future__ import annotations

from gpumagic.render.blocks import Grid
from gpumagic.results import LineMemory, LineReport, MemoryDelta, SourceLines
from gpumagic.results.base import as_text

MIB = 2**20


def test_in_a_terminal_of_eighty_columns_the_bar_gives_way_to_the_source() -> None:
    source = "loss = criterion(model(x), labels)"
    lines = {0: {1: LineMemory(2 * MIB, 2 * MIB, 2 * MIB, 0, 2 * MIB)}}
    cell = SourceLines("cell", 1, (source,), lines)
    row = as_text(LineReport(MemoryDelta({}), (cell,)), 80).splitlines()[3]
    assert row == f"   1  +2.00 MiB  ███████ +2.00 MiB  2.00 MiB  {source}"


def test_retained_bytes_are_emphasised_beside_the_largest() -> None:
    lines = {0: {1: LineMemory(stayed=96 * MIB), 2: LineMemory(stayed=512), 3: LineMemory()}}
    cell = SourceLines("cell", 1, ("a", "b", "c"), lines)
    grid = LineReport(MemoryDelta({}), (cell,))._blocks()[1]
    assert isinstance(grid, Grid)
    place = [column.header for column in grid.columns].index("Retained")
    assert [row[place].style for row in grid.rows] == ["strong", "", "dim"]
