"""The plot of ``%gpu plot``: the use of each device over time, with the cells that ran."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

from gpumagic.magics.gpu.watch_history import WatchHistory
from gpumagic.render.colors import BAD, INK, NEUTRAL, SERIES
from gpumagic.render.plots import Plot
from gpumagic.render.units import bytes_
from gpumagic.results.devices import Device
from gpumagic.wording import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The height of a device's panel in inches.
_HEIGHT = 1.5
#: Where the axis in percent ends.
_TOP = 103
#: The seconds from which on the axis of time is in minutes.
_MINUTES_FROM = 180
#: A cell has a label if it takes more than this part of the width: no label overlaps another.
_LABELLED = 1 / 25


def draw(history: WatchHistory) -> Plot:
    """Return a plot of utilisation and memory in percent over time, with the cells.

    Idle devices are left out.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    devices = history.busy_devices()
    plot = Plot(max(len(devices), 1), _HEIGHT)
    times = [sample.time for sample in history.samples] or [0.0]
    start, took = times[0], times[-1] - times[0]
    scale, unit = (1.0, "seconds") if took < _MINUTES_FROM else (60.0, "minutes")
    width = max(took, 1e-3) / scale
    for device, axes in zip(devices, plot.panels, strict=False):
        _draw_device(axes, history, device, [(time - start) / scale for time in times])
    for cell in history.cells:
        # A cell that runs on, or began before the first sample, ends with the picture.
        left = max(cell.start - start, 0.0) / scale
        right = min((cell.end or times[-1]) - start, took) / scale
        for axes in plot.panels:
            axes.axvspan(left, right, color=BAD if cell.failed else INK, alpha=0.12)
        if cell.number is not None and right - left > width * _LABELLED:
            label, place = f"[{cell.number}]{' ✗' if cell.failed else ''}", (left + right) / 2
            centred = {"ha": "center", "va": "bottom", "annotation_clip": False}
            plot.panels[0].annotate(label, (place, _TOP), **centred)
    plot.panels[0].set_xlim(0, width)
    idle = len(history.devices) - len(devices)
    note = f" · {plural(idle, 'idle GPU')} left out" if idle else ""
    plot.panels[-1].set_xlabel(f"{unit} since the beginning{note}")
    plot.legend()
    return plot


def _draw_device(axes: Axes, history: WatchHistory, device: Device, times: Sequence[float]) -> None:
    """Draw a device's utilisation in percent, and its memory in percent of its total."""

    def draw(label: str, figure: str, whole: float, color: str) -> list[float]:
        values = history.values(device.index, figure)
        heights = [nan if each is None else 100 * each / whole for each in values]
        axes.plot(times, heights, drawstyle="steps-post", label=label, color=color)
        return heights

    total = device.memory_total or nan
    busy = draw("utilisation", "utilization", 100, SERIES[0])
    axes.fill_between(times, busy, step="post", alpha=0.25, color=SERIES[0])
    draw("memory, all", "memory_used", total, NEUTRAL)
    draw("memory, mine", "memory_own", total, SERIES[1])
    axes.set_ylim(0, _TOP)
    axes.set_yticks([0, 50, 100], ["0", "50", "100 %"])
    axes.set_ylabel(f"GPU {device.index}\nmemory: {bytes_(device.memory_total)}")
