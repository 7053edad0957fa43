"""The samples of a watch: figures of the whole time, a DataFrame, a picture."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results import CellSpan, Device, DeviceSample, UtilizationSample, WatchHistory
from gpumagic.results.watch import WatchedDevice
from tests.support.drawing import check_drawing

GIB = 2**30
DEVICES = tuple(
    WatchedDevice(i, i if i < 2 else None, f"GPU-{i}", "H100", 80 * GIB) for i in range(3)
)


def sample(time: float, *utilizations: int | None) -> UtilizationSample:
    return UtilizationSample(
        time,
        tuple(
            DeviceSample(i, value, GIB * (i == 0), 2 * GIB * (i == 1), 3 * GIB, 40, 100.5 + i)
            for i, value in enumerate(utilizations)
        ),
    )


HISTORY = WatchHistory(
    DEVICES,
    # The second sample holds for eight seconds, the third for one.
    (sample(0, 0, None, 0), sample(1, 100, None, 0), sample(9, 50, None, 0), sample(10, 0, 7, 0)),
    (
        CellSpan(3, "train()", 0.5, 4),
        CellSpan(4, "1/0", 5, 9.5, failed=True),
        CellSpan(5, "x", 9.9),
    ),
    stride=2,
    forgotten=1,
)
TEXT = """\
GPU  Device  Util, mean  Util, highest  Mine, highest  Others, highest  Power, highest  Temp, highest
─────────────────────────────────────────────────────────────────────────────────────────────────────
  0  cuda:0        85 %          100 %       1.00 GiB              0 B           100 W          40 °C
  1  cuda:1           –            7 %            0 B         2.00 GiB           102 W          40 °C
  2  –              0 %            0 %            0 B              0 B           102 W          40 °C
4 samples in 10.0 s · one of 2 kept · 4 cells"""  # noqa: E501


def test_the_figures_of_the_whole_time() -> None:
    check_drawing(HISTORY, TEXT)
    assert repr(HISTORY) == "<WatchHistory: 4 samples of 3 devices>"
    check_drawing(WatchHistory(), "Nothing was watched.")
    said = " · still watched then: '%gpu plot -o' returns what there is now"
    check_drawing(replace(HISTORY, running=True), TEXT + said)


@pytest.mark.parametrize(
    ("time", "number"), [(0.2, None), (0.5, 3), (3.9, 3), (4.5, None), (9, 4), (9.7, None), (11, 5)]
)
def test_the_cell_at_a_time(time: float, number: int | None) -> None:
    cell = HISTORY.cell_at(time)
    assert (None if cell is None else cell.number) == number


def test_a_data_frame() -> None:
    frame = HISTORY.to_pandas()
    assert list(frame.index.names) == ["time", "gpu"]
    assert len(frame) == 12
    first = frame.xs(0, level="gpu")
    assert list(first["utilization"]) == [0, 100, 50, 0]
    assert [None if c is None or c != c else int(c) for c in first["cell"].to_numpy(None)] == [
        None,
        3,
        4,
        5,
    ]
    assert first.index[1].timestamp() == 1.0
    assert frame["utilization"].isna().sum() == 3
    assert not len(WatchHistory().to_pandas())


def test_a_picture_of_the_busy_devices() -> None:
    assert [device.index for device in HISTORY.busy_devices()] == [0, 1]
    figure = HISTORY.plot().figure
    assert len(figure.axes) == 2
    first = figure.axes[0]
    curves = {line.get_label(): line for line in first.get_lines()}
    assert list(curves["utilisation"].get_ydata()) == [0, 100, 50, 0]
    assert curves["memory, mine"].get_ydata()[0] == pytest.approx(100 / 80)
    assert "GPU 0 (cuda:0)" in first.get_ylabel()
    assert [text.get_text() for text in first.texts] == ["[4] ✗", "[3]"]
    spans = [patch for patch in first.patches if hasattr(patch, "get_width")]
    assert [(s.get_x(), s.get_x() + s.get_width()) for s in spans] == [
        (0.5, 4.0),
        (5.0, 9.5),
        (9.9, pytest.approx(10.0)),
    ]
    assert "1 idle GPU left out" in figure.axes[-1].get_xlabel()
    # Transparent: legible in a light and in a dark notebook.
    assert figure.patch.get_alpha() == first.patch.get_alpha() == 0


def test_a_picture_of_a_single_sample_of_idle_devices() -> None:
    history = WatchHistory(DEVICES, (UtilizationSample(5, (DeviceSample(0, 0, 0, 0, 0),)),))
    assert len(history.plot().figure.axes) == 3


def test_the_device_of_a_reading() -> None:
    read = Device(1, ordinal=0, uuid="GPU-1", memory_own=3, power=4.5, visible=True)
    assert WatchedDevice.of(read).label == "GPU 1 (cuda:0)"
    assert DeviceSample.of(read) == DeviceSample(1, memory_own=3, power=4.5)
