"""Figures of matplotlib, which is optional and imported here only.

Without pyplot: no figure stays open, and no backend is chosen.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from gpumagic.errors import DependencyError
from gpumagic.render.units import bytes_

#: Dots per inch of a picture in a notebook, which shows ``_CSS`` of them as an inch.
_DPI, _CSS = 144, 96


class Plot:
    """A picture that a notebook shows; ``figure`` is matplotlib's ``Figure``."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure

    def save(self, path: str | Path, **options: Any) -> None:
        """Write the picture to a file; its suffix says what kind (``.png``, ``.svg``, ``.pdf``)."""
        self.figure.savefig(path, **options)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=120)
        return buffer.getvalue()

    def __repr__(self) -> str:
        return "<Plot: .save(path) writes it to a file>"

    def bundle(self, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the picture with ``text`` as MIME data, and its metadata: the size to show."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png")
        width, height = (int(inches * _CSS) for inches in self.figure.get_size_inches())
        data = {"image/png": buffer.getvalue(), "text/plain": text}
        return data, {"image/png": {"width": width, "height": height}}


def available() -> bool:
    """Return whether matplotlib can be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def new_plot(width: float, height: float) -> Plot:
    """Return an empty plot; inches.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError(
            "plots need matplotlib, which is not installed: pip install matplotlib"
        ) from error
    return Plot(Figure(figsize=(width, height), dpi=_DPI, layout="constrained"))


def bytes_axis(axis: Any, step: int) -> None:
    """Label an axis in bytes, with a tick at every multiple of ``step``."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: bytes_(int(value))))
