"""The panel at one time: figures, curves of the last minute, and its status line."""

from __future__ import annotations

import re
import time

import pytest

from gpumagic.render.blocks import DASH
from gpumagic.results import Device, DeviceSample, DeviceTable, UtilizationSample, WatchPanel
from gpumagic.results.base import as_html, as_text
from gpumagic.results.watch import WatchedDevice, ordinal_cell

GIB = 2**30
NOW = time.mktime((2026, 1, 2, 3, 4, 5, 0, 0, -1))
DEVICES = (
    WatchedDevice(0, 0, "GPU-0", "NVIDIA H200", 140 * GIB, 700.0, True),
    WatchedDevice(1, None, "GPU-1", "NVIDIA H200", 140 * GIB, 700.0, False),
)


def sample(ago: float, first: int, own: int | None = GIB) -> UtilizationSample:
    devices = (
        DeviceSample(0, first, own, 0, 2 * GIB, 60, 350.0),
        DeviceSample(1, 0, 0, 4 * GIB, 4 * GIB, 30, None),
    )
    return UtilizationSample(NOW - ago, devices)


SAMPLES = (sample(30, 10), sample(15, 90), sample(0, 40))
TEXT = """\
2 × NVIDIA H200 · 140 GiB
GPU  Device  Util      Mine    Others  Power   Temp
───────────────────────────────────────────────────
  0  cuda:0  40 %  1.00 GiB       0 B  350 W  60 °C
  1  hidden   0 %       0 B  4.00 GiB      –  30 °C
"""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {},
            "● live while the kernel runs · last sample 03:04:05 · every 1 s · "
            "'%gpu watch off' ends it",
        ),
        (
            {"asleep": True, "every": 10.0},
            "● live while the kernel runs · last sample 03:04:05 · no change for a minute: samples "
            "every 10 s, and when a cell runs · '%gpu watch off' ends it",
        ),
        (
            {"ended": "5 s are over"},
            "■ ended: 5 s are over · last sample 03:04:05 · '%gpu plot' draws the samples",
        ),
        (
            {"ended": "the kernel was restarted", "samples_lost": True},
            "■ ended: the kernel was restarted · last sample 03:04:05 · its samples are gone",
        ),
        (
            {"hint": "Dock it."},
            "● live while the kernel runs · last sample 03:04:05 · every 1 s · "
            "'%gpu watch off' ends it\nDock it.",
        ),
    ],
)
def test_the_text(fields: dict[str, object], expected: str) -> None:
    panel = WatchPanel(**{"devices": DEVICES, "samples": SAMPLES, "every": 1.0, **fields})  # type: ignore[arg-type]
    assert as_text(panel, 200) == TEXT + expected


def test_each_figure_has_a_curve_of_the_last_minute() -> None:
    html = as_html(WatchPanel(DEVICES, SAMPLES, 1.0))
    labels = re.findall(r'aria-label="([^"]*)"', html)
    assert labels == [
        "utilisation: 10 % to 90 % in the last minute, of 100 %",
        "memory, mine: 1.00 GiB to 1.00 GiB in the last minute, of 140 GiB",
        "memory, others&#x27;: 0 B to 0 B in the last minute, of 140 GiB",
        "power: 350 W to 350 W in the last minute, of 700 W",
        "temperature: 60 °C to 60 °C in the last minute",
        "utilisation: 0 % to 0 % in the last minute, of 100 %",
        "memory, mine: 0 B to 0 B in the last minute, of 140 GiB",
        "memory, others&#x27;: 4.00 GiB to 4.00 GiB in the last minute, of 140 GiB",
        "temperature: 30 °C to 30 °C in the last minute",
    ]
    # 10 % from half a minute ago on, 90 % from a quarter, 40 % at the right edge.
    assert ' d="M30,34V26H45V4H60V18H64V34Z"' in html
    assert "<script" not in html
    # Figures and curves are aligned, each in its column.
    assert html.count("justify-content:space-between") == 2 * 5  # also where a figure is unknown


def test_what_is_not_known() -> None:
    unknown = UtilizationSample(NOW, (DeviceSample(0), DeviceSample(1, error="GPU is lost")))
    devices = (WatchedDevice(0, name="A"), WatchedDevice(1, name="B"), WatchedDevice(2))
    text = as_text(WatchPanel(devices, (unknown,), 1.0), 200)
    rows = text.splitlines()[2:5]
    assert rows[0].split() == ["0", *"–––––"[:1], "–", "–", "–", "–", "–"]
    assert rows[1].split()[:6] == ["1", "–", "✗", "GPU", "is", "lost"]
    assert rows[2].split()[:5] == ["2", "–", "✗", "not", "listed"]
    assert "0 " not in rows[0][3:]


def test_a_long_error_leaves_the_other_figures_their_width() -> None:
    error = "the GPU is lost: it needs a reset, or the machine a reboot"
    lost = UtilizationSample(NOW, (DeviceSample(0, error=error),))
    html = as_html(WatchPanel(DEVICES[:1], (lost,), 1.0))
    assert f'<span title="{error}"' in html
    assert ">✗ the GPU is lost: it …<" in html


def test_no_device() -> None:
    assert as_text(WatchPanel((), (), 1.0), 200).startswith(
        "● live while the kernel runs · no sample yet"
    )


@pytest.mark.parametrize(
    ("visible", "shown"), [(True, "cuda:?"), (False, "hidden"), (None, DASH)], ids=str
)
def test_an_ordinal_that_is_not_known_is_shown_as_in_the_table(
    visible: bool | None, shown: str
) -> None:
    device = Device(0, visible=visible)
    watched = WatchedDevice.of(device)
    assert ordinal_cell(watched).text == shown
    assert shown in str(DeviceTable((device,)))
