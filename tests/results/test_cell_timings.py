"""The times of the cells of a session."""

from __future__ import annotations

import pytest

from gpumagic.results import CellTiming, TimingLog
from tests.support.drawing import check_drawing

GPU = CellTiming(4, "step()", 2.0, 0.5, 0.25, 1.5, {0: 1.0, 1: 1.5}, used_gpu=True)
AT_MOST = CellTiming(
    None, "train(" + "a, " * 20 + ")", 0.02, 0.02, 0.02, 0.01, gpu_at_most=True, used_gpu=True
)
FAILED = CellTiming(6, "1 / 0", 0.0, 0.0, 0.0, failed=True)
LOG = TimingLog((GPU, AT_MOST, FAILED), forgotten=1)
TEXT = """\
3 cells, 2 with GPU work: wall 2.02 s, GPU ≤ 1.51 s, CPU 270 ms
 Cell              Wall        GPU      CPU  First line
─────────────────────────────────────────────────────────────────────────────────────────
  [4]  ████████  2.00 s     1.50 s   250 ms  step()
    –  ▏        20.0 ms  ≤ 10.0 ms  20.0 ms  train(a, a, a, a, a, a, a, a, a, a, a, a, a…
✗ [6]               0 s          –   < 1 µs  1 / 0
1 older cell dropped from the log"""


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        (GPU, "GPU 1.50 s (cuda:0 1.00 s, cuda:1 1.50 s) · wall 2.00 s · CPU 250 ms"),
        (AT_MOST, "GPU ≤ 10.0 ms · wall 20.0 ms · CPU 20.0 ms"),
        (
            CellTiming(1, "x", 1.0, 1.0, 1.0, used_gpu=True, note="no event"),
            "GPU – · wall 1.00 s · CPU 1.00 s · no event",
        ),
        (CellTiming(1, "x", 1.0, 1.0, 0.5), "wall 1.00 s · CPU 500 ms"),
    ],
)
def test_the_line_of_a_cell(cell: CellTiming, line: str) -> None:
    check_drawing(cell, line)


def test_drawing_of_the_log() -> None:
    check_drawing(LOG, TEXT)
    check_drawing(TimingLog(), "No cell has been timed yet: '%cudatime on' starts the log")
    check_drawing(TimingLog(watching=True), "No cell has been timed yet: none has ended since")


def test_a_long_log_shows_the_longest() -> None:
    cells = tuple(CellTiming(i, f"cell {i}", i / 10, i / 10, cpu=0.1) for i in range(1, 31))
    lines = str(TimingLog(cells, forgotten=2)).splitlines()
    assert lines[0] == "30 cells, 0 with GPU work: wall 46.5 s, GPU –, CPU 3.00 s"
    assert lines[3].split()[0] == "[30]"
    assert len(lines) == 3 + 20 + 2
    assert lines[-2] == "the 20 longest are shown; .to_pandas() has all 30"
    assert lines[-1] == "2 older cells dropped from the log"


def test_sums() -> None:
    assert (LOG.wall, LOG.gpu, LOG.gpu_at_most) == (2.02, 1.51, True)
    assert LOG.cpu == pytest.approx(0.27)
    assert TimingLog((FAILED,)).gpu is None


def test_repr() -> None:
    assert repr(GPU) == "<CellTiming [4] gpu 1.5 s, wall 2 s>"
    assert repr(FAILED) == "<CellTiming [6] gpu -, wall 0 s>"
    assert repr(TimingLog((GPU,))) == "<TimingLog: 1 cell>"


def test_data_frame() -> None:
    pytest.importorskip("pandas")
    frame = LOG.to_pandas()
    assert frame.loc[4, "cuda:1"] == 1.5
    assert frame["gpu"].isna().tolist() == [False, False, True]
    assert frame["gpu"].dtype == float
