"""GPU memory over the cells of a session."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results import CellLog, CellMemory, DeviceMemoryDelta
from gpumagic.results.base import as_text
from tests.support.drawing import check_drawing

MIB = 2**20
GIB = 2**30
SOME = DeviceMemoryDelta(MIB, 2 * MIB, MIB, 3 * MIB, 4 * MIB)
RESERVED = DeviceMemoryDelta(0, -2 * MIB, 0, 0, 2 * MIB)
FAILED = DeviceMemoryDelta(0, 0, GIB, GIB, 2 * GIB, ooms=1)
LOG = CellLog(
    (
        CellMemory(1, "import torch", 2.5),
        CellMemory(2, "x = " + "very_" * 20 + "long", 0.012, {0: SOME, 1: SOME, 2: RESERVED}),
        CellMemory(None, "step()", 61, {0: FAILED}, failed=True),
    ),
    forgotten=1,
)
TEXT = """\
Cell  Device                   Change  Peak above start  Allocated now       Time  First line
───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
 [1]  –                             –                 –              –     2.50 s  import torch
 [2]  cuda:0                +1.00 MiB         +1.00 MiB       3.00 MiB    12.0 ms  x = very_very_very_very_very_very_very_very…
      cuda:1                +1.00 MiB         +1.00 MiB       3.00 MiB
      cuda:2                      0 B               0 B            0 B
 ✗ –  cuda:0 out of memory        0 B         +1.00 GiB       1.00 GiB  1 min 1 s  step()
1 older cell dropped from the log"""  # noqa: E501


@pytest.mark.parametrize(
    ("devices", "line"),
    [
        ({}, "GPU memory: no change"),
        ({0: DeviceMemoryDelta(0, 0, 0, 5, 5)}, "GPU memory: no change"),
        ({0: SOME}, "GPU memory: cuda:0 +1.00 MiB, peak +1.00 MiB, now 3.00 MiB"),
        ({0: RESERVED}, "GPU memory: cuda:0 reserved −2.00 MiB, now 2.00 MiB"),
        (
            {0: SOME, 1: SOME, 2: SOME, 4: SOME, 5: RESERVED},
            "GPU memory: cuda:0-2,4 each +1.00 MiB, peak +1.00 MiB, now 3.00 MiB · "
            "cuda:5 reserved −2.00 MiB, now 2.00 MiB",
        ),
        (
            {0: FAILED, 1: FAILED},
            "GPU memory: cuda:0-1 each 0 B, peak +1.00 GiB, now 1.00 GiB (out of memory: cuda:0-1)",
        ),
    ],
)
def test_the_line_of_a_cell(devices: dict[int, DeviceMemoryDelta], line: str) -> None:
    check_drawing(CellMemory(1, "x", 0.1, devices), line)


def test_in_a_terminal_with_colours_the_line_is_dim() -> None:
    cell = CellMemory(1, "x", 0.1, {0: DeviceMemoryDelta(MIB, 0, MIB, MIB)})
    assert as_text(cell, color=True) == (
        "\x1b[2mGPU memory: \x1b[0m\x1b[2mcuda:0 +1.00 MiB, peak +1.00 MiB, now 1.00 MiB\x1b[0m"
    )


def test_drawing_of_the_log() -> None:
    check_drawing(LOG, TEXT)
    check_drawing(CellLog(), "No cells to show: '%gpumem on' starts the log")
    check_drawing(CellLog(watching=True), "No cells to show: none has ended since")


def test_a_long_log_shows_the_newest() -> None:
    lines = as_text(CellLog(tuple(CellMemory(i, "x", 0.1) for i in range(1, 63))), 80).splitlines()
    assert lines[2].split()[0] == "[3]"
    assert lines[-1] == "2 earlier cells not shown here; -o returns all"


def test_repr() -> None:
    assert repr(LOG) == "<CellLog: 3 cells>"
    assert repr(LOG[0]) == "<CellMemory [1] no change>"
    assert repr(LOG[2]) == "<CellMemory [None] 0: +0 B>"


def test_data_frame() -> None:
    pytest.importorskip("pandas")
    frame = LOG.to_pandas()
    assert list(frame.loc[(2, 0), ["allocated", "peak", "reserved_now"]]) == [MIB, MIB, 4 * MIB]
    assert frame["ooms"].sum() == 1
    assert len(frame) == 4


def test_the_legend_of_a_picture_has_what_is_drawn() -> None:
    pytest.importorskip("matplotlib")

    def legend(log: CellLog) -> set[str]:
        (found,) = log.plot().figure.legends
        return {text.get_text() for text in found.get_texts()}

    assert legend(CellLog(LOG.cells[:2])) == {"allocated", "reserved", "peak"}
    # The failure is in one panel of several.
    last = CellMemory(4, "y", 0.1, {0: SOME, 1: FAILED})
    assert legend(CellLog((LOG[1], last))) == {"allocated", "reserved", "peak", "out of memory"}


def test_the_picture() -> None:
    pytest.importorskip("matplotlib")
    limited = CellLog(LOG.cells, limits={0: 2 * GIB, 1: GIB})
    assert (limited.known_devices(), limited.drawn_devices()) == ([0, 1, 2], [0, 1])
    first, second = limited.plot().figure.axes
    assert first.get_title(loc="right") == "limit 2.00 GiB"
    assert [text.get_text() for text in first.texts] == ["2.00 GiB"], "the highest peak"
    same = DeviceMemoryDelta(0, 0, 0, 4 * GIB, 4 * GIB)
    constant = CellLog(
        tuple(replace(cell, devices={**cell.devices, 1: same}) for cell in LOG.cells)
    )
    assert constant.drawn_devices() == [0]
    assert second.get_title(loc="right") == "limit 1.00 GiB, above the scale"
    lines = {line.get_label(): line for line in first.lines}
    assert list(lines["allocated"].get_ydata()) == [3 * MIB, GIB]
    assert list(lines["reserved"].get_ydata()) == [4 * MIB, 2 * GIB]
    assert list(lines["out of memory"].get_xdata()) == [2]
    assert [label.get_text() for label in second.get_xticklabels()] == ["[1]", "[2]", "–"]
    assert [axes.get_ylabel() for axes in (first, second)] == ["cuda:0", "cuda:1"]
