"""The plot of GPU memory over the cells, by matplotlib (the extra ``plot``).

Drawn without pyplot: no backend is chosen, no figure is kept, nothing of the user's is touched.
"""

from __future__ import annotations

from io import BytesIO
from math import ceil, log2
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.render.units import bytes_
from gpumagic.results import CellLog, CellMemory

_DPI = 144
#: So many cells are numbered below the axis.
_TICKS = 20
_BAD = "#c0392b"


def figure(log: CellLog) -> Any:
    """A matplotlib ``Figure``: allocated, reserved and peak after each cell, a panel a device.

    Raises:
        SpecError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, MultipleLocator
    except ImportError:
        raise SpecError(
            "a plot needs matplotlib; install it with: pip install matplotlib"
        ) from None
    known = sorted({ordinal for cell in log for ordinal in cell.devices})
    used = {i for cell in log for i, d in cell.devices.items() if d.reserved_now or d.ooms}
    ordinals = [ordinal for ordinal in known if ordinal in used] or known
    height = 0.6 + 2.4 * len(ordinals)
    drawn = Figure(figsize=(8, height), dpi=_DPI, layout="constrained", facecolor="white")
    panels = drawn.subplots(len(ordinals), 1, sharex=True, squeeze=False)[:, 0]
    for ordinal, axes in zip(ordinals, panels, strict=True):
        _panel(axes, log.cells, ordinal, log.limits.get(ordinal))
        binary = 2 ** max(0, ceil(log2(axes.get_ylim()[1] / 6)))
        axes.yaxis.set_major_locator(MultipleLocator(binary))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_(int(value))))
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=8, frameon=False)
    step = max(1, -(-len(log) // _TICKS))
    places = range(0, len(log), step)
    numbers = ["–" if log[i].number is None else f"[{log[i].number}]" for i in places]
    panels[-1].set_xticks(list(places), numbers, fontsize=8)
    panels[-1].set_xlabel("cell")
    return drawn


def _panel(axes: Any, cells: tuple[CellMemory, ...], ordinal: int, limit: int | None) -> None:
    places = [i for i, cell in enumerate(cells) if ordinal in cell.devices]
    deltas = [cells[i].devices[ordinal] for i in places]
    peaks = [d.allocated_now - d.allocated + d.peak for d in deltas]
    axes.bar(places, peaks, width=0.8, color="#f2a65a", alpha=0.55, label="peak")
    axes.step(
        places,
        [d.reserved_now for d in deltas],
        where="mid",
        color="#8a8f98",
        linewidth=1.2,
        label="reserved",
    )
    axes.step(
        places,
        [d.allocated_now for d in deltas],
        where="mid",
        color="#1f6fb2",
        linewidth=1.8,
        label="allocated",
    )
    top = max([1, *peaks, *(d.reserved_now for d in deltas)])
    # A limit far above everything would flatten the curves.
    above = limit is not None and limit > 4 * top
    if limit is not None:
        axes.set_title(
            f"limit {bytes_(limit)}{', above' if above else ''}",
            loc="right",
            fontsize=8,
            color=_BAD,
        )
        axes.axhline(limit, color=_BAD, linewidth=1, linestyle="--", label="limit")
    if limit is not None and not above:
        top = max(top, limit)
    failed = [i for i, d in zip(places, deltas, strict=True) if d.ooms]
    for place in failed:
        axes.axvline(place, color=_BAD, linewidth=1, linestyle=":")
    marks = [top * 1.04] * len(failed)
    axes.plot(
        failed, marks, "x", color=_BAD, markersize=7, markeredgewidth=2, label="out of memory"
    )
    axes.set_ylim(0, top * 1.08)
    axes.set_xlim(-0.6, max(len(cells) - 0.4, 0.6))
    axes.set_ylabel(f"cuda:{ordinal}")
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def picture(drawn: Any, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figure as a PNG for a notebook, with its text, and the size at which to show it."""
    buffer = BytesIO()
    drawn.savefig(buffer, format="png")
    width, height = (int(inches * 96) for inches in drawn.get_size_inches())
    bundle = {"image/png": buffer.getvalue(), "text/plain": text}
    return bundle, {"image/png": {"width": width, "height": height}}
