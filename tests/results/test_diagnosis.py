"""A diagnosis in text and in HTML."""

from __future__ import annotations

from gpumagic.results import Diagnosis, Finding
from gpumagic.results.base import as_html, as_text


def test_text_and_html_show_the_same() -> None:
    result = Diagnosis(
        "torch can use 1 GPU here.",
        1,
        (
            Finding("driver", "ok", "version 1 <script>"),
            Finding("pynvml", "warn", "not installed", "%pip install nvidia-ml-py"),
            Finding("NVML", "bad", "gone"),
            Finding("device files", "unknown", "none"),
        ),
    )
    assert as_text(result) == (
        "torch can use 1 GPU here.\n"
        "ok    driver: version 1 <script>\n"
        "warn  pynvml: not installed\n"
        "      → %pip install nvidia-ml-py\n"
        "bad   NVML: gone\n"
        "?     device files: none"
    )
    html = as_html(result)
    assert "<script>" not in html
    for color in ("success", "warn", "error"):
        assert f"--jp-{color}-color1" in html
    assert result.to_dict()["findings"][1]["remedy"] == "%pip install nvidia-ml-py"
