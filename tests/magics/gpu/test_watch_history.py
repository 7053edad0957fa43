"""The samples of a watch: figures of the whole time, a DataFrame, a picture."""

from __future__ import annotations

import pytest

from gpumagic.magics.gpu import history_plot
from gpumagic.magics.gpu.watch_history import WatchHistory
from tests.results.examples import HISTORY


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
    figure = history_plot.draw(HISTORY).figure
    assert len(figure.axes) == 2
    first = figure.axes[0]
    curves = {line.get_label(): line for line in first.get_lines()}
    assert list(curves["utilisation"].get_ydata()) == [0, 100, 50, 0]
    assert curves["memory, mine"].get_ydata()[0] == pytest.approx(100 / 80)
    assert first.get_ylabel() == "GPU 0\nmemory: 80.0 GiB"
    assert [text.get_text() for text in first.texts] == ["[3]", "[4] ✗"]
    spans = [patch for patch in first.patches if hasattr(patch, "get_width")]
    assert [(s.get_x(), s.get_x() + s.get_width()) for s in spans] == [
        (0.5, 4.0),
        (5.0, 9.5),
        (9.9, pytest.approx(10.0)),
    ]
