"""Draw curves in percent over time, in a panel for each subject, with spans of time behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpumagic.render import plots
from gpumagic.render.colors import BAD, INK, NEUTRAL, SERIES
from gpumagic.render.plots import Plot

_LINES = (SERIES[0], NEUTRAL, SERIES[1])
#: The most spans whose label is written.
_LABELS = 20


@dataclass(frozen=True)
class Span:
    """A span of time in seconds, with a label."""

    start: float
    end: float
    label: str
    failed: bool = False


@dataclass(frozen=True)
class Panel:
    """The curves of one subject, in percent, by name; the first one is filled."""

    title: str
    curves: Mapping[str, Sequence[float | None]]


def draw(
    times: Sequence[float], panels: Sequence[Panel], spans: Sequence[Span], note: str = ""
) -> Plot:
    """Return the figure, with a note below it.

    Each value holds from its time, in seconds, until the next one.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    plot = plots.new_plot(0.9 + 1.5 * max(len(panels), 1))
    plot.figure.patch.set_alpha(0)
    scale, unit = _scale(times[-1] if times else 0.0)
    all_axes = plot.figure.subplots(max(len(panels), 1), 1, sharex=True, squeeze=False)[:, 0]
    scaled = [time / scale for time in times]
    for panel, axes in zip(panels, all_axes, strict=False):
        for place, (name, values) in enumerate(panel.curves.items()):
            heights = [float("nan") if value is None else value for value in values]
            style: dict[str, Any] = {"color": _LINES[place % len(_LINES)], "linewidth": 1.4}
            axes.plot(scaled, heights, drawstyle="steps-post", label=name, **style)
            if not place:
                fill = {"alpha": 0.25, "linewidth": 0, "color": style["color"]}
                axes.fill_between(scaled, heights, step="post", **fill)
        _frame(axes, panel.title)
        for span in spans:
            color = BAD if span.failed else INK
            start, stop = span.start / scale, span.end / scale
            axes.axvspan(start, stop, color=color, alpha=0.12, linewidth=0)
            for edge in (start, stop):
                axes.axvline(edge, color=color, alpha=0.5, linewidth=0.6, linestyle=":")
    end = max(scaled[-1] if scaled else 0.0, 1e-3)
    all_axes[0].set_xlim(0, end)
    _label(all_axes[0], spans, scale)
    all_axes[-1].set_xlabel(
        f"{unit} since the beginning{note and f' · {note}'}", color=INK, fontsize=8
    )
    handles, labels = all_axes[0].get_legend_handles_labels()
    style = {"fontsize": 8, "frameon": False, "labelcolor": INK}
    plot.figure.legend(handles, labels, loc="outside upper right", ncols=3, **style)
    return plot


def _scale(seconds: float) -> tuple[float, str]:
    """Return the seconds of a unit for the whole time, and the unit's name."""
    return (1.0, "seconds") if seconds < 180 else (60.0, "minutes")


def _frame(axes: Any, title: str) -> None:
    axes.patch.set_alpha(0)
    axes.set_ylim(0, 103)
    axes.set_yticks([0, 50, 100], ["0", "50", "100 %"])
    axes.set_ylabel(title, color=INK, fontsize=8)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(axis="y", color=INK, alpha=0.2, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def _label(axes: Any, spans: Sequence[Span], scale: float) -> None:
    """Write the labels of the longest spans above the first panel, without overlap."""
    longest = sorted(spans, key=lambda span: span.start - span.end)[:_LABELS]
    _, right = axes.get_xlim()
    taken: list[float] = []
    for span in longest:
        middle = min((span.start + span.end) / 2 / scale, right)
        long = (span.end - span.start) / scale > right / 100
        if span.label and long and all(abs(middle - other) > right / 25 for other in taken):
            taken.append(middle)
            color = BAD if span.failed else INK
            text = f"{span.label} ✗" if span.failed else span.label
            style = {"ha": "center", "va": "bottom", "fontsize": 8, "color": color}
            axes.annotate(text, (middle, 103), annotation_clip=False, **style)
