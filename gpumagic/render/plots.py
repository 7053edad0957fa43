"""Create figures of matplotlib, which is optional.

Does not use pyplot, so that no figure stays open and no backend is selected.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumagic.errors import DependencyError
from gpumagic.render.colors import BAD, INK, NEUTRAL, SERIES
from gpumagic.render.units import bytes_

#: Dots per inch of a picture in a notebook, which shows ``_CSS`` of them as an inch.
_DPI, _CSS = 144, 96
_SIZE = 9
WIDTH = 8.0
#: The most spans whose label is written.
_LABELS = 20


class Plot:
    """A picture that a notebook shows; ``figure`` is matplotlib's ``Figure``."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure

    def save(self, path: str | Path, **options: Any) -> None:
        """Write the picture to a file in the format of its suffix (``.png``, ``.svg``, ``.pdf``).

        ``options`` are those of matplotlib's ``Figure.savefig``.
        """
        _style(self.figure)
        self.figure.savefig(path, **{"transparent": True, **options})

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.bundle(repr(self))

    def __repr__(self) -> str:
        return "<Plot: .save(path) writes it to a file>"

    def bundle(self, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the picture with ``text`` as MIME data, and its metadata: the size to show."""
        buffer = io.BytesIO()
        self.save(buffer, format="png")  # type: ignore[arg-type]
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


def new_plot(height: float) -> Plot:
    """Return an empty plot, `WIDTH` inches wide and ``height`` inches high.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError(
            "plots need matplotlib, which is not installed: pip install matplotlib"
        ) from error
    return Plot(Figure(figsize=(WIDTH, height), dpi=_DPI, layout="constrained", facecolor="none"))


def bytes_axis(axis: Any, step: int) -> None:
    """Label an axis in bytes, with a tick at every multiple of ``step``."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: bytes_(int(value))))


@dataclass(frozen=True)
class Span:
    """A span of time in seconds, with a label."""

    start: float
    end: float
    label: str
    failed: bool = False


def over_time(
    times: Sequence[float],
    panels: Mapping[str, Mapping[str, Sequence[float | None]]],
    spans: Sequence[Span],
    note: str,
) -> Plot:
    """Return curves in percent over time, a panel for each subject, with spans behind them.

    A panel has its curves by name, the first one filled. A value holds from its time, in seconds,
    until the next one.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    count = max(len(panels), 1)
    plot = new_plot(0.9 + 1.5 * count)
    all_axes = plot.figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    end = max(times[-1] if times else 0.0, 1e-3)
    scale, unit = (1.0, "seconds") if end < 180 else (60.0, "minutes")
    scaled = [time / scale for time in times]
    for (title, curves), axes in zip(panels.items(), all_axes, strict=False):
        for (name, values), color in zip(curves.items(), (SERIES[0], NEUTRAL, SERIES[1])):  # noqa: B905
            heights = [float("nan") if value is None else value for value in values]
            axes.plot(scaled, heights, drawstyle="steps-post", label=name, color=color)
            if color == SERIES[0]:
                axes.fill_between(scaled, heights, step="post", alpha=0.25, color=color)
        axes.set_ylim(0, 103)
        axes.set_yticks([0, 50, 100], ["0", "50", "100 %"])
        axes.set_ylabel(title)
        for span in spans:
            color = BAD if span.failed else INK
            axes.axvspan(span.start / scale, span.end / scale, color=color, alpha=0.12)
    all_axes[0].set_xlim(0, end / scale)
    _label(all_axes[0], spans, scale)
    all_axes[-1].set_xlabel(f"{unit} since the beginning{note and f' · {note}'}")
    handles, labels = all_axes[0].get_legend_handles_labels()
    plot.figure.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False)
    return plot


def _label(axes: Any, spans: Sequence[Span], scale: float) -> None:
    """Write the labels of the longest spans above the first panel, without overlap."""
    _, right = axes.get_xlim()
    taken: list[float] = []
    for span in sorted(spans, key=lambda span: span.start - span.end)[:_LABELS]:
        middle = min((span.start + span.end) / 2 / scale, right)
        is_long = (span.end - span.start) / scale > right / 100
        if span.label and is_long and all(abs(middle - other) > right / 25 for other in taken):
            taken.append(middle)
            text = f"{span.label} ✗" if span.failed else span.label
            place = {"ha": "center", "va": "bottom", "annotation_clip": False}
            axes.annotate(text, (middle, 103), **place)
