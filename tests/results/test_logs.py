"""The lines and the table of the GPU memory of cells."""

from __future__ import annotations

import pytest

from gpumagic.results.base import as_text
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta
from gpumagic.results.memory.memory_log import CellLog, CellMemory
from tests.results.examples import OUT_OF_MEMORY_IN_A_CELL, RESERVED, SOME
from tests.support.drawing import check_drawing


@pytest.mark.parametrize(
    ("devices", "line"),
    [
        ({}, "GPU memory: no change"),
        ({0: DeviceMemoryDelta(0, 0, 0, 5, 5)}, "GPU memory: no change"),
        ({0: SOME}, "GPU memory: cuda:0 +1.00 MiB, peak +1.00 MiB, now 3.00 MiB"),
        ({0: RESERVED}, "GPU memory: cuda:0 reserved −2.00 MiB, now 2.00 MiB"),
        (
            {0: SOME, 1: SOME, 2: SOME, 4: SOME, 5: RESERVED},
            "GPU memory: cuda:0–2, 4 each +1.00 MiB, peak +1.00 MiB, now 3.00 MiB · "
            "cuda:5 reserved −2.00 MiB, now 2.00 MiB",
        ),
        (
            {0: OUT_OF_MEMORY_IN_A_CELL, 1: OUT_OF_MEMORY_IN_A_CELL},
            "GPU memory: cuda:0–1 each 0 B, peak +1.00 GiB, now 1.00 GiB (out of memory: cuda:0–1)",
        ),
    ],
)
def test_the_line_of_a_cell(devices: dict[int, DeviceMemoryDelta], line: str) -> None:
    check_drawing(CellMemory(1, "x", 0.1, devices), line)


def test_a_long_log_shows_the_newest() -> None:
    lines = as_text(CellLog(tuple(CellMemory(i, "x", 0.1) for i in range(1, 63))), 80).splitlines()
    assert lines[2].split()[0] == "[3]"
    assert lines[-1] == "2 earlier cells not shown here; -o returns all"
