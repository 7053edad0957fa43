"""The change of GPU memory by each line of a cell."""

from __future__ import annotations

import pytest

from gpumagic.render.blocks import Grid
from gpumagic.results import DeviceMemoryDelta, LineMemory, LineReport, MemoryDelta, SourceLines
from gpumagic.results.base import as_text
from tests.support.drawing import check_drawing

MIB = 2**20
SOURCE = ("if True:", "    a = f(2)", *(f"n{i} = {i}" for i in range(12)), "\tb = f(1)")
REPORT = LineReport(
    MemoryDelta({0: DeviceMemoryDelta(3 * MIB, 4 * MIB, 3 * MIB, 3 * MIB, 4 * MIB)}),
    (
        SourceLines(
            "cell",
            2,
            SOURCE,
            {
                0: {
                    3: LineMemory(2 * MIB, 2 * MIB, 2 * MIB, 0, 2 * MIB),
                    16: LineMemory(0, MIB, MIB, MIB, None),
                }
            },
            runs={2: 1, 3: 1200, 16: 1},
        ),
        SourceLines("f", 1, ("def f(n):", "    return n"), ran=False),
        SourceLines("g", 1, (), empty=True),
    ),
    elsewhere={0: -MIB},
    notes=("a note",),
)
TEXT = """\
cell on cuda:0
Line   Hits     Change                Peak  Retained  Source
──────────────────────────────────────────────────────────────────
   2      1                                           if True:
   3  1,200  +2.00 MiB  ████████ +2.00 MiB  2.00 MiB      a = f(2)
   4                                                  n0 = 0
   5                                                  n1 = 1
                                                      ⋯
  14                                                  n10 = 10
  15                                                  n11 = 11
  16      1        0 B  ████     +1.00 MiB         –      b = f(1)
f: was not seen to run in this cell's thread
g: nothing to run
cuda:0: −1.00 MiB while no line of the cell ran
Device  Allocated  Peak above start   Reserved  Allocated now  Reserved now
───────────────────────────────────────────────────────────────────────────
cuda:0  +3.00 MiB         +3.00 MiB  +4.00 MiB       3.00 MiB      4.00 MiB
a note"""


def test_drawing() -> None:
    check_drawing(REPORT, TEXT)


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


def test_repr() -> None:
    assert repr(REPORT) == "<LineReport: cell, f, g>"
    assert repr(LineReport(MemoryDelta(error="no torch"))) == "<LineReport: no torch>"


def test_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = REPORT.to_pandas()
    assert frame.loc[("cell", 3, 0), "change"] == 2 * MIB
    assert frame.loc[("cell", 3, 0), "text"] == "a = f(2)"
    assert frame.loc[("cell", 16, 0), "stayed"] is pandas.NA
    assert frame.loc[("cell", 3, 0), "runs"] == 1200
