"""The plot of ``%gpumem plot``: the memory of each device after each cell of the log."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from typing import TYPE_CHECKING

from gpumagic.render.colors import BAD, NEUTRAL, SERIES
from gpumagic.render.plots import Plot
from gpumagic.render.units import bytes_
from gpumagic.results.cell_log import cell_number
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta
from gpumagic.results.memory.memory_log import CellLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The height of a device's panel in inches.
_HEIGHT = 2.4
#: Where the axis of bytes ends, as a multiple of the highest figure; and where its crosses are.
_TOP, _CROSSES = 1.12, 1.04
#: The most ticks of the axis of bytes above 0.
_TICKS = 6
#: A limit that is further above the curves than this is not drawn: it would flatten them.
_FAR = 4


def changed_devices(log: CellLog) -> list[int]:
    """Return the CUDA ordinals whose memory a cell changed; all if there are none."""
    changed = {ordinal for cell in log for ordinal in cell.changed}
    return sorted(changed or {ordinal for cell in log for ordinal in cell.devices})


def draw(log: CellLog) -> Plot:
    """Return a plot of allocated, reserved and peak memory after each cell, by device.

    Devices with the same memory throughout are left out.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    ordinals = changed_devices(log)
    plot = Plot(len(ordinals), _HEIGHT)
    for ordinal, axes in zip(ordinals, plot.panels, strict=True):
        cells = {i: each.devices[ordinal] for i, each in enumerate(log) if ordinal in each.devices}
        _draw_device(axes, cells, log.limits.get(ordinal))
        axes.set_ylabel(f"cuda:{ordinal}")
    plot.number([cell_number(cell.number).text for cell in log], "cell")
    plot.legend()
    return plot


def _draw_device(axes: Axes, cells: Mapping[int, DeviceMemoryDelta], limit: int | None) -> None:
    """Draw two curves in bytes, and at each cell a bar from what was held to the peak."""
    places, changes = [*cells], [*cells.values()]
    # What was allocated before and after a cell: one that did nothing has no peak above.
    held = [max(each.allocated_now, each.allocated_now - each.allocated) for each in changes]
    peaks = [each.allocated_now - each.allocated + each.peak for each in changes]
    above = [max(peak - base, 0) for peak, base in zip(peaks, held, strict=True)]
    reserved = [each.reserved_now for each in changes]
    axes.bar(places, above, bottom=held, color=SERIES[1], alpha=0.7, label="peak")
    axes.step(places, reserved, where="mid", color=NEUTRAL, label="reserved")
    allocated = [each.allocated_now for each in changes]
    axes.step(places, allocated, where="mid", color=SERIES[0], label="allocated")
    top = max(1, *peaks, *reserved)
    if any(above):
        seen = zip(peaks, places, above, strict=True)
        peak, place = max((peak, place) for peak, place, part in seen if part)
        axes.annotate(bytes_(peak), (place, peak), ha="center", va="bottom")
    if limit is not None:
        axes.set_title(f"limit {bytes_(limit)}", loc="right")
        if limit <= _FAR * top:
            axes.axhline(limit, color=BAD, linestyle="--", label="limit")
            top = max(top, limit)
    if failed := [place for place, each in cells.items() if each.ooms]:
        crosses = [top * _CROSSES] * len(failed)
        axes.plot(failed, crosses, "x", color=BAD, label="out of memory")
        axes.vlines(failed, 0, top, color=BAD, linestyle=":")
    step = 2 ** max(0, ceil(log2(top * _TOP / _TICKS)))
    ticks = range(0, ceil(top * _TOP), step)
    axes.set_yticks(ticks, [*map(bytes_, ticks)])
    axes.set_ylim(0, top * _TOP)
