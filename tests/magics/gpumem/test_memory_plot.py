"""The picture of the GPU memory over the cells of a session."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.magics.gpumem import memory_plot
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta
from gpumagic.results.memory.memory_log import CellLog
from tests.results.examples import CELL_LOG

GIB = 2**30


def test_each_device_that_changed_has_a_panel() -> None:
    pytest.importorskip("matplotlib")
    limited = CellLog(CELL_LOG.cells, limits={0: 2 * GIB, 1: GIB})
    first, second, last = memory_plot.draw(limited).figure.axes
    assert first.get_title(loc="right") == "limit 2.00 GiB"
    assert [text.get_text() for text in first.texts] == ["2.00 GiB"], "the highest peak"
    assert "limit" in [line.get_label() for line in first.get_lines()]
    same = DeviceMemoryDelta(0, 0, 0, 4 * GIB, 4 * GIB)
    constant = CellLog(
        tuple(replace(cell, devices={**cell.devices, 1: same}) for cell in CELL_LOG.cells)
    )
    assert memory_plot.changed_devices(constant) == [0, 2]
    assert second.get_title(loc="right") == "limit 1.00 GiB"
    assert "limit" not in [line.get_label() for line in second.get_lines()], "above the scale"
    assert [label.get_text() for label in last.get_xticklabels()] == ["[1]", "[2]", "–"]
    in_bytes = {label.get_text() for label in first.get_yticklabels()}
    assert {"0 B", "512 MiB", "1.00 GiB"} < in_bytes
    assert [axes.get_ylabel() for axes in (first, second)] == ["cuda:0", "cuda:1"]
