"""The times of the cells of a session."""

from __future__ import annotations

import pytest

from gpumagic.results import CellTiming, TimingLog
from tests.results.examples import AT_MOST_CELL, FAILED_CELL, GPU_CELL, TIMING_LOG
from tests.support.drawing import check_drawing


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        (GPU_CELL, "GPU 1.50 s (cuda:0 1.00 s, cuda:1 1.50 s) · wall 2.00 s · CPU 250 ms"),
        (AT_MOST_CELL, "GPU ≤ 10.0 ms · wall 20.0 ms · CPU 20.0 ms"),
        (
            CellTiming(1, "x", 1.0, 1.0, 1.0, used_gpu=True, note="no event"),
            "GPU – · wall 1.00 s · CPU 1.00 s · no event",
        ),
        (CellTiming(1, "x", 1.0, 1.0, 0.5), "wall 1.00 s · CPU 500 ms"),
    ],
)
def test_the_line_of_a_cell(cell: CellTiming, line: str) -> None:
    check_drawing(cell, line)


def test_a_long_log_shows_the_longest() -> None:
    cells = tuple(CellTiming(i, f"cell {i}", i / 10, i / 10, cpu=0.1) for i in range(1, 31))
    lines = str(TimingLog(cells, forgotten=2)).splitlines()
    assert lines[0] == "30 cells, 0 with GPU work: wall 46.5 s, GPU –, CPU 3.00 s"
    assert lines[3].split()[0] == "[30]"
    assert len(lines) == 3 + 20 + 2
    assert lines[-2] == "the 20 longest are shown; .to_pandas() has all 30"
    assert lines[-1] == "2 older cells dropped from the log"


def test_sums() -> None:
    assert (TIMING_LOG.wall, TIMING_LOG.gpu, TIMING_LOG.gpu_at_most) == (2.02, 1.51, True)
    assert TIMING_LOG.cpu == pytest.approx(0.27)
    assert TimingLog((FAILED_CELL,)).gpu is None
