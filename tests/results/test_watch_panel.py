"""The panel at one time: figures, curves of the last minute, and its status line."""

from __future__ import annotations

import re

import pytest

from gpumagic.results import WatchPanel
from gpumagic.results.base import as_html, as_text
from tests.results.examples import PANEL, SAMPLES

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
    panel = WatchPanel(**{"devices": PANEL, "samples": SAMPLES, "every": 1.0, **fields})  # type: ignore[arg-type]
    assert as_text(panel, 200) == TEXT + expected


def test_each_figure_has_a_curve_of_the_last_minute() -> None:
    html = as_html(WatchPanel(PANEL, SAMPLES, 1.0))
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
