"""Live GPU memory by the cell that allocated it."""

from __future__ import annotations

import pytest

from gpumagic.results import CellHolding, CellHoldings
from tests.support.drawing import check_drawing

MIB = 2**20
HOLDINGS = CellHoldings(
    {
        0: (
            CellHolding(3, "model = Net()", 3 * MIB, 12),
            CellHolding(7, "x = torch.empty(" + "1024, " * 20, MIB, 1),
            CellHolding(None, "not known: before the recording began", 0, 0),
        ),
        1: (CellHolding(3, "model = Net()", 512, 1),),
    },
    notes=("a note",),
)
TEXT = """\
Device  Cell  First line                                      Memory           Share  Blocks
────────────────────────────────────────────────────────────────────────────────────────────
cuda:0   [3]  model = Net()                                 3.00 MiB  ██████    75 %      12
         [7]  x = torch.empty(1024, 1024, 1024, 1024, 102…  1.00 MiB  ██        25 %       1
              not known: before the recording began              0 B             0 %       0
              allocated                                     4.00 MiB                      13
cuda:1   [3]  model = Net()                                    512 B  ████████ 100 %       1
a note"""


def test_drawing() -> None:
    check_drawing(HOLDINGS, TEXT)
    check_drawing(CellHoldings(notes=("a note",)), "No GPU memory is allocated\na note")


def test_repr() -> None:
    assert repr(HOLDINGS) == f"<CellHoldings: {4 * MIB + 512} B on 2 devices>"
    assert repr(CellHoldings()) == "<CellHoldings: 0 B on 0 devices>"


def test_data_frame() -> None:
    pytest.importorskip("pandas")
    frame = HOLDINGS.to_pandas()
    assert frame.loc[(0, 3), "bytes"] == 3 * MIB
    assert str(frame.index.get_level_values("cell").dtype) == "Int64"
    assert frame.index.get_level_values("cell").isna().sum() == 1
