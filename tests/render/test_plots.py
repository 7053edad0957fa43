"""Pictures by matplotlib, which is optional."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from types import ModuleType

import pytest

from gpumagic.errors import DependencyError
from gpumagic.render.colors import SERIES
from gpumagic.render.plots import Plot

PNG = b"\x89PNG"


def test_a_plot_without_pyplot(matplotlib: ModuleType, tmp_path: Path) -> None:
    before = "matplotlib.pyplot" in sys.modules
    plot = Plot(1, 1.2)
    plot.save(tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text(encoding="utf-8")
    data, metadata = plot.bundle("a plot")
    assert data["image/png"].startswith(PNG)
    assert data["text/plain"] == "a plot"
    assert metadata == {"image/png": {"width": 768, "height": 192}}
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_pictures_have_no_background_and_text_legible_on_white_and_on_black(
    matplotlib: ModuleType,
) -> None:
    from matplotlib.image import imread

    plot = Plot(1, 1.2)
    axes = plot.panels[0]
    axes.set(xlabel="x", title="title")
    axes.plot([0, 1], [0, 1], label="a", color=SERIES[0])
    plot.legend()
    pixels = imread(BytesIO(plot.bundle("")[0]["image/png"]))
    assert pixels[0, 0, 3] == 0
    assert (pixels[..., 3] == 0).mean() > 0.5
    drawn = pixels[pixels[..., 3] == 1][:, :3]
    assert drawn.mean(axis=1).min() > 0.2
    assert drawn.mean(axis=1).max() < 0.8


def test_without_matplotlib_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DependencyError, match="pip install matplotlib"):
        Plot(1, 1.2)
