"""GPU memory over the cells of a session."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results.base import as_text
from gpumagic.results.logs import CellLog, CellMemory
from gpumagic.results.memory import DeviceMemoryDelta
from tests.results.examples import CELL_LOG, OUT_OF_MEMORY_IN_A_CELL, RESERVED, SOME
from tests.support.drawing import check_drawing

GIB = 2**30


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


def test_the_picture() -> None:
    pytest.importorskip("matplotlib")
    limited = CellLog(CELL_LOG.cells, limits={0: 2 * GIB, 1: GIB})
    first, second, last = limited.plot().figure.axes
    assert first.get_title(loc="right") == "limit 2.00 GiB"
    assert [text.get_text() for text in first.texts] == ["2.00 GiB"], "the highest peak"
    assert "limit" in [line.get_label() for line in first.get_lines()]
    same = DeviceMemoryDelta(0, 0, 0, 4 * GIB, 4 * GIB)
    constant = CellLog(
        tuple(replace(cell, devices={**cell.devices, 1: same}) for cell in CELL_LOG.cells)
    )
    assert (constant.known_devices(), constant.drawn_devices()) == ([0, 1, 2], [0, 2])
    assert second.get_title(loc="right") == "limit 1.00 GiB"
    assert "limit" not in [line.get_label() for line in second.get_lines()], "above the scale"
    assert [label.get_text() for label in last.get_xticklabels()] == ["[1]", "[2]", "–"]
    in_bytes = {label.get_text() for label in first.get_yticklabels()}
    assert {"0 B", "512 MiB", "1.00 GiB"} < in_bytes
    assert [axes.get_ylabel() for axes in (first, second)] == ["cuda:0", "cuda:1"]
