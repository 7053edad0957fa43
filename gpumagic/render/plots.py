"""Pictures by matplotlib, which is optional: `Plot` has panels above one another, in one style.

Without pyplot no figure stays open, and no backend is selected.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

from gpumagic.errors import DependencyError, SpecError
from gpumagic.render.colors import INK
from gpumagic.system.user_paths import of_another_user
from gpumagic.system.writing import output_path, replacing

#: Dots per inch of a picture in a notebook.
_DPI = 144
#: Pixels that a notebook takes for an inch, as CSS does.
_CSS = 96
#: The size of all text in points.
_SIZE = 9
#: The most labels below an axis.
_TICKS = 20
#: The width in inches.
_WIDTH = 8.0
#: The height in inches of what is around the panels.
_AROUND = 0.8


class Plot:
    """A picture for a notebook or a file; ``figure`` is matplotlib's ``Figure``."""

    def __init__(self, count: int, height: float) -> None:
        """Make ``count`` empty panels, each ``height`` inches high.

        Raises:
            DependencyError: matplotlib is not installed.
            SpecError: its import would read a file of another user.
        """
        if "matplotlib" not in sys.modules and of_another_user(Path("matplotlibrc")):
            raise SpecError(
                "matplotlib would read ./matplotlibrc, which another user has put there: import "
                "matplotlib first if you trust it, or change the working folder"
            )
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise DependencyError(
                "plots need matplotlib, which is not installed: pip install matplotlib"
            ) from error
        size = (_WIDTH, _AROUND + height * count)
        self.figure: Any = Figure(size, dpi=_DPI, layout="constrained", facecolor="none")
        self.panels = self.figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]

    def legend(self) -> None:
        """Write what is drawn in the panels above them, each once."""
        drawn: dict[str, Any] = {}
        for axes in self.panels:
            handles, labels = axes.get_legend_handles_labels()
            drawn |= zip(labels, handles, strict=True)
        place = {"loc": "outside upper right", "ncols": 5, "frameon": False}
        self.figure.legend([*drawn.values()], [*drawn], **place)

    def number(self, labels: Sequence[str], axis: str) -> None:
        """Label the places of the axis, or some of many."""
        places = range(0, len(labels), max(1, ceil(len(labels) / _TICKS)))
        self.panels[-1].set_xticks([*places], [labels[i] for i in places])
        self.panels[-1].set_xlim(-0.6, max(len(labels) - 0.4, 0.6))
        self.panels[-1].set_xlabel(axis)

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file in the format of its suffix (``.png``, ``.svg``, ``.pdf``).

        Returns the path of the file: without a suffix it gets ``.png``.

        Raises:
            SpecError: the file cannot be written.
            ValueError: there is no such format.
        """
        target = output_path(path if Path(path).suffix else f"{path}.png")
        with replacing(target) as made:
            self._draw(made)
        return target

    def _draw(self, to: Path | BinaryIO, form: str | None = None) -> None:
        _style(self.figure)
        self.figure.savefig(to, format=form, transparent=True)

    def bundle(self, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the picture with ``text`` as MIME data, and its metadata: the size to show."""
        buffer = io.BytesIO()
        self._draw(buffer, "png")
        width, height = (int(inches * _CSS) for inches in self.figure.get_size_inches())
        data = {"image/png": buffer.getvalue(), "text/plain": text}
        return data, {"image/png": {"width": width, "height": height}}


def _style(figure: Any) -> None:
    """Apply the style of all pictures: no background, grey text and axes, no box."""
    for axes in figure.axes:
        axes.set_facecolor("none")
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(INK)
        axes.tick_params(colors=INK, labelsize=_SIZE)
    for text in figure.findobj(lambda each: hasattr(each, "set_fontsize")):
        text.set_color(INK)
        text.set_fontsize(_SIZE)
