"""The doctor's report, and the line below a cell that failed."""

from __future__ import annotations

import pytest

from gpumagic.results import Diagnosis, Explanation, Finding
from gpumagic.results.base import as_html
from tests.support.drawing import check_drawing

DIAGNOSIS = Diagnosis(
    "torch can use 1 GPU here.",
    1,
    (
        Finding("driver", "ok", "version 1 <script>"),
        Finding("pynvml", "warn", "not installed", "%pip install nvidia-ml-py"),
        Finding("NVML", "bad", "gone"),
        Finding("device files", "unknown", "none"),
    ),
)
TEXT = """\
torch can use 1 GPU here.
ok    driver: version 1 <script>
warn  pynvml: not installed
      → %pip install nvidia-ml-py
bad   NVML: gone
?     device files: none"""


def test_drawing() -> None:
    check_drawing(DIAGNOSIS, TEXT)
    html = as_html(DIAGNOSIS)
    assert "<script>" not in html
    for color in ("success", "warn", "error"):
        assert f"--jp-{color}-color1" in html
    check_drawing(Explanation("the reason"), "the reason")


@pytest.mark.parametrize(
    ("usable", "style"), [(None, "opacity"), (0, "--jp-error-color1"), (2, "--jp-success-color1")]
)
def test_the_colour_of_the_verdict(usable: int | None, style: str) -> None:
    assert style in as_html(Diagnosis("verdict", usable))


def test_data() -> None:
    assert DIAGNOSIS.to_dict()["findings"][1]["remedy"] == "%pip install nvidia-ml-py"
    assert DIAGNOSIS.about("NVML") is DIAGNOSIS[2]
    assert DIAGNOSIS.about("torch") is None


def test_repr() -> None:
    assert repr(DIAGNOSIS) == "<Diagnosis: torch can use 1 GPU here. To look at: pynvml, NVML>"
    assert repr(Diagnosis("fine")) == "<Diagnosis: fine To look at: nothing>"
    assert repr(Explanation("the reason")) == "<Explanation: the reason>"
