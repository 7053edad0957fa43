"""Results as pictures, by matplotlib, which is optional and imported here only.

Without pyplot: no figure stays open behind the user's back, and no backend is chosen.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import singledispatch
from importlib import import_module
from pathlib import Path
from typing import Any

from gpumagic.errors import DependencyError
from gpumagic.results import Comparison, CudaTiming, Sample
from gpumagic.system.text import harmless

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class Plot:
    """A picture that a notebook shows by itself; ``figure`` is matplotlib's."""

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


def available() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import_module("matplotlib")
    except ImportError:
        return False
    return True


def plot(result: Any) -> Plot:
    """The picture of a result.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    try:
        figures = import_module("matplotlib.figure")
    except ImportError as error:
        raise DependencyError(
            "plots need matplotlib, which is not here: pip install matplotlib"
        ) from error
    figure = figures.Figure(figsize=(8, 3), layout="constrained")
    _draw(result, figure)
    return Plot(figure)


@singledispatch
def _draw(result: Any, figure: Any) -> None:
    raise TypeError(f"gpumagic has no picture of a {type(result).__name__}")


def _scale(samples: Sequence[Sample]) -> tuple[float, str]:
    """The unit in which the largest of all values reads well."""
    largest = max(sample.worst for sample in samples)
    return next((unit for unit in _UNITS if largest >= unit[0]), _UNITS[-1])


@_draw.register
def _(result: CudaTiming, figure: Any) -> None:
    """The timeline of the runs on the left, their distribution on the right."""
    name = "GPU" if result.gpu is not None else "wall"
    rows = {name: result.wall if result.gpu is None else result.gpu}
    if len(result.per_device) > 1:
        rows.update((f"cuda:{i}", sample) for i, sample in result.per_device.items())
    scale, unit = _scale(list(rows.values()))
    timeline, spread = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
    for i, (label, sample) in enumerate(rows.items()):
        values = [value / scale for value in sample.all]
        timeline.plot(range(1, len(values) + 1), values, "o-", ms=3, lw=0.8, label=label)
        color = f"C{i}"
        bins = min(max(round(len(values) ** 0.5), 5), 30)
        spread.hist(values, bins, orientation="horizontal", alpha=0.6, color=color)
        spread.axhline(sample.median / scale, color=color, lw=1)
    bound = ", at most" if result.gpu_at_most else ""
    timeline.set(xlabel="repeat", ylabel=f"{name} time per loop{bound} ({unit})", title="runs")
    spread.set(xlabel="repeats", title="distribution; the line is the median")
    if len(rows) > 1:
        timeline.legend(frameon=False)


@_draw.register
def _(result: Comparison, figure: Any) -> None:
    """A row a timing: every repeat as a dot, the quartiles as a bar, the median as a line."""
    samples = [result.sample(entry) for entry in result]
    scale, unit = _scale(samples)
    axes = figure.subplots()
    for row, (entry, sample) in enumerate(zip(result, samples, strict=True)):
        values = [value / scale for value in sample.all]
        color = "C0" if row == 0 else {"faster": "C2", "slower": "C1"}.get(str(entry.verdict), "C7")
        low, high = (sample.quantile(q) / scale for q in (0.25, 0.75))
        axes.barh(row, high - low, left=low, height=0.5, color=color, alpha=0.3)
        axes.plot([sample.median / scale] * 2, [row - 0.25, row + 0.25], color=color, lw=2)
        # Side by side in the order of the runs, so that a drift shows as a slope.
        steps = max(len(values) - 1, 1)
        heights = [row + 0.2 - 0.4 * i / steps if steps > 1 else row for i in range(len(values))]
        axes.plot(values, heights, ".", color=color, ms=4)
    # A name is no formula.
    names = [harmless(entry.name).replace("$", r"\$") for entry in result]
    axes.set_yticks(range(len(samples)), names)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    name = {"gpu": "GPU", "wall": "wall"}[result.quantity]
    axes.set(xlabel=f"{name} time per loop ({unit})")
