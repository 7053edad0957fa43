"""The change of GPU memory by each cell of a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, log2
from typing import TYPE_CHECKING, Any, ClassVar

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, Style, cut
from gpumagic.render.units import bytes_, seconds, spans
from gpumagic.results.base import Result, Series, data_frame
from gpumagic.results.memory import DeviceMemoryDelta, only_changed
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

    from gpumagic.render.plots import Plot

#: The most cells that are shown, the newest, and the most characters of their first lines.
_SHOWN, _LONGEST = 60, 44
#: The most cells that are numbered below the plot's axis.
_TICKS = 20

#: A device that never held more than this part of what another one did is not drawn.
_NEXT_TO_NOTHING = 0.001


@dataclass(frozen=True)
class CellMemory(Result):
    """The change of GPU memory by one cell, and by code that ran between it and the one before."""

    #: The execution number; None for a cell that a front end ran outside the history.
    number: int | None
    #: The cell's first line.
    source: str
    #: Wall time.
    seconds: float
    #: One for each device that torch has used.
    devices: Mapping[int, DeviceMemoryDelta] = field(default_factory=dict)
    #: Whether the cell raised or was interrupted.
    failed: bool = False

    @property
    def changed(self) -> Mapping[int, DeviceMemoryDelta]:
        """The devices whose memory changed or peaked during the cell."""
        return only_changed(self.devices)

    def _blocks(self) -> list[Block]:
        changed = self.changed
        if not changed:
            return [Line.of("GPU memory: no change", "dim")]
        groups: dict[str, list[int]] = {}
        for ordinal, delta in changed.items():
            groups.setdefault(_changes(delta), []).append(ordinal)
        parts = [Cell("GPU memory: ", "dim")]
        for i, (text, ordinals) in enumerate(groups.items()):
            each = " each" if len(ordinals) > 1 else ""
            parts.append(Cell(f"{' · ' if i else ''}{_devices(ordinals)}{each} {text}", "dim"))
            ooms = [ordinal for ordinal in ordinals if changed[ordinal].ooms]
            if ooms:
                parts.append(Cell(f" (out of memory: {_devices(ooms)})", "bad"))
        return [Line(parts)]

    def __repr__(self) -> str:
        inner = ", ".join(f"{i}: {d.allocated:+d} B" for i, d in self.changed.items())
        return f"<CellMemory [{self.number}] {inner or 'no change'}>"


@dataclass(frozen=True)
class CellLog(Series[CellMemory]):
    """The memory of each cell that ended while ``%gpumem on`` was on, oldest first."""

    items_in: ClassVar[str] = "cells"

    cells: tuple[CellMemory, ...] = ()
    #: How many older cells were dropped from the log.
    forgotten: int = 0
    #: Bytes that the process may reserve, by CUDA ordinal.
    limits: Mapping[int, int] = field(default_factory=dict)
    #: Whether ``%gpumem on`` is in effect.
    watching: bool = False

    def _blocks(self) -> list[Block]:
        if not self.cells:
            hint = "none has ended since" if self.watching else "'%gpumem on' starts the log"
            return [Line.of(f"No cells to show: {hint}")]
        columns = [
            Column("Cell", "right"),
            # Needed where a cell has rows for several devices.
            Column("Device", rank=0 if len({i for cell in self for i in cell.changed}) > 1 else 1),
            Column("Change", "right"),
            Column("Peak above start", "right"),
            Column("Allocated now", "right", rank=2),
            Column("Time", "right", rank=3),
            Column("First line", least=16),
        ]
        shown = self.cells[-_SHOWN:]
        rows = [row for cell in shown for row in _log_rows(cell)]
        blocks: list[Block] = [Grid(columns, rows)]
        hidden = len(self.cells) - len(shown)
        if hidden:
            text = f"{plural(hidden, 'earlier cell')} not shown here; -o returns all"
            blocks.append(Line.of(text, "dim"))
        if self.forgotten:
            text = f"{plural(self.forgotten, 'older cell')} dropped from the log"
            blocks.append(Line.of(text, "dim"))
        return blocks

    def __repr__(self) -> str:
        return f"<CellLog: {plural(len(self), 'cell')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each cell and device (needs pandas). Bytes, seconds.

        ``peak`` is above the cell's start. A cell before torch used a device has no row.
        """
        figures = [f.name for f in dataclasses.fields(DeviceMemoryDelta)]
        rows = [
            [cell.number, cell.source, cell.seconds, cell.failed, ordinal]
            + [getattr(delta, name) for name in figures]
            for cell in self.cells
            for ordinal, delta in cell.devices.items()
        ]
        columns = ["cell", "source", "seconds", "failed", "device", *figures]
        # A cell may have no number.
        return data_frame(rows, columns, index=["cell", "device"], types={"cell": "Int64"})

    def known_devices(self) -> list[int]:
        """Return the CUDA ordinals of all cells."""
        return sorted({ordinal for cell in self for ordinal in cell.devices})

    def drawn_devices(self) -> list[int]:
        """Return the devices whose memory a picture shows: large enough, and not always the same.

        All if there are none.
        """
        known = self.known_devices()
        changed = {i for cell in self for i, d in cell.devices.items() if only_changed({i: d})}
        highest = dict.fromkeys(known, 0)
        failed = set()
        for cell in self:
            for i, d in cell.devices.items():
                highest[i] = max(
                    highest[i], d.allocated_now - d.allocated + d.peak, d.allocated_now
                )
                failed |= {i} if d.ooms else set()
        least = max(highest.values(), default=0) * _NEXT_TO_NOTHING
        shown = [i for i in known if i in failed or (highest[i] > least and i in changed)]
        return shown or known

    def plot(self) -> Plot:
        """Return a picture of allocated, reserved and peak memory after each cell, by device.

        Devices with next to nothing, or with the same memory throughout, are left out.

        Raises:
            DependencyError: matplotlib is not installed.
        """
        from gpumagic.render import plots

        ordinals = self.drawn_devices()
        plot = plots.new_plot(0.6 + 2.4 * len(ordinals))
        panels = plot.figure.subplots(len(ordinals), 1, sharex=True, squeeze=False)[:, 0]
        for ordinal, axes in zip(ordinals, panels, strict=True):
            _draw(axes, self.cells, ordinal, self.limits.get(ordinal))
            plots.bytes_axis(axes.yaxis, 2 ** max(0, ceil(log2(axes.get_ylim()[1] / 6))))
        drawn: dict[str, Any] = {}
        for axes in panels:
            handles, labels = axes.get_legend_handles_labels()
            drawn |= zip(labels, handles, strict=True)
        place = {"loc": "outside upper center", "ncols": 5}
        plot.figure.legend([*drawn.values()], [*drawn], fontsize=8, frameon=False, **place)
        places = range(0, len(self), max(1, -(-len(self) // _TICKS)))
        panels[-1].set_xticks(
            list(places), [number_text(self[i].number) for i in places], fontsize=8
        )
        panels[-1].set_xlabel("cell")
        return plot


def _draw(axes: Any, cells: tuple[CellMemory, ...], ordinal: int, limit: int | None) -> None:
    """Draw the memory of one device into ``axes``."""
    from gpumagic.render import colors

    places = [i for i, cell in enumerate(cells) if ordinal in cell.devices]
    deltas = [cells[i].devices[ordinal] for i in places]
    peaks = [d.allocated_now - d.allocated + d.peak for d in deltas]
    reserved = [d.reserved_now for d in deltas]
    allocated = [d.allocated_now for d in deltas]
    # The part above the memory before and after the cell: none for a cell that did nothing.
    bases = [max(d.allocated_now, d.allocated_now - d.allocated) for d in deltas]
    above = [max(peak - base, 0) for peak, base in zip(peaks, bases, strict=True)]
    axes.bar(
        places, above, bottom=bases, width=0.8, color=colors.SERIES[1], alpha=0.7, label="peak"
    )
    axes.step(places, reserved, where="mid", color=colors.NEUTRAL, linewidth=1.2, label="reserved")
    axes.step(
        places, allocated, where="mid", color=colors.SERIES[0], linewidth=1.8, label="allocated"
    )
    top = max([1, *peaks, *reserved])
    if any(above):
        highest = max(range(len(peaks)), key=lambda i: peaks[i] if above[i] else 0)
        axes.annotate(
            bytes_(peaks[highest]),
            (places[highest], peaks[highest]),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    if limit is not None:
        # A limit far above the curves would flatten them.
        beyond = limit > 4 * top
        title = f"limit {bytes_(limit)}{', above the scale' if beyond else ''}"
        axes.set_title(title, loc="right", fontsize=8, color=colors.INK)
        if not beyond:
            axes.axhline(limit, color=colors.BAD, linewidth=1, linestyle="--", label="limit")
            top = max(top, limit)
    failed = [i for i, d in zip(places, deltas, strict=True) if d.ooms]
    for place in failed:
        axes.axvline(place, color=colors.BAD, linewidth=1, linestyle=":")
    cross = {"color": colors.BAD, "markersize": 7, "markeredgewidth": 2}
    if failed:
        axes.plot(failed, [top * 1.04] * len(failed), "x", label="out of memory", **cross)
    axes.set_ylim(0, top * 1.12)
    axes.set_xlim(-0.6, max(len(cells) - 0.4, 0.6))
    axes.set_ylabel(f"cuda:{ordinal}")
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _changes(delta: DeviceMemoryDelta) -> str:
    if delta.allocated or delta.peak or not delta.reserved:
        change = f"{bytes_(delta.allocated, sign=True)}, peak {bytes_(delta.peak, sign=True)}"
        return f"{change}, now {bytes_(delta.allocated_now)}"
    return f"reserved {bytes_(delta.reserved, sign=True)}, now {bytes_(delta.reserved_now)}"


def _devices(ordinals: list[int]) -> str:
    """Return the devices in short: ``cuda:0``, ``cuda:0,2`` or ``cuda:0-3``."""
    return "cuda:" + spans(ordinals, comma=",", dash="-")


def _log_rows(cell: CellMemory) -> list[list[Cell]]:
    number = cell_number(cell.number, failed=cell.failed)
    source = first_line(cell.source, "bad" if cell.failed else "")
    time = Cell(seconds(cell.seconds), "dim")
    changed = cell.changed
    if not changed:
        return [[number, *[Cell(DASH, "dim")] * 4, time, source]]
    rows = []
    for i, (ordinal, delta) in enumerate(changed.items()):
        oom = " out of memory" if delta.ooms else ""
        rows.append(
            [
                number if i == 0 else Cell(""),
                Cell(f"cuda:{ordinal}{oom}", "bad" if oom else ""),
                Cell(bytes_(delta.allocated, sign=True), "" if delta.allocated else "dim"),
                Cell(bytes_(delta.peak, sign=True), "" if delta.peak else "dim"),
                Cell(bytes_(delta.allocated_now), "dim"),
                *((time, source) if i == 0 else [Cell("")] * 2),
            ]
        )
    return rows


def first_line(source: str, style: Style = "") -> Cell:
    """Return a cell's first line as a table shows it."""
    return cut(source, _LONGEST, style)


def cell_number(number: int | None, *, failed: bool = False) -> Cell:
    """Return a cell's execution number as a table shows it: ``[3]``, ``✗ [3]`` if it failed."""
    text = number_text(number)
    return Cell(f"✗ {text}", "bad") if failed else Cell(text, "dim")


def number_text(number: int | None) -> str:
    """Return a cell's execution number as text: ``[3]``."""
    return DASH if number is None else f"[{number}]"
