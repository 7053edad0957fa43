"""The panel of ``%gpu watch``: the current figures, and a curve of the last minute for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, Sparkline, Style
from gpumagic.render.units import bytes_, percent, rounded
from gpumagic.results.base import Result
from gpumagic.results.devices import error_cell
from gpumagic.results.watch import DeviceSample, UtilizationSample, WatchedDevice, ordinal_cell

#: Seconds that the curves show.
_SECONDS = 60.0
#: The temperatures at the bottom and top of a curve: idle, and about where clocks are reduced.
_COLD, _HOT = 20, 95
_watts, _celsius = partial(rounded, unit="W"), partial(rounded, unit="°C")
_COLUMNS = (
    Column("GPU", "right"),
    Column("Device"),
    Column("Util", "right"),
    Column("Mine", "right"),
    Column("Others", "right"),
    Column("Power", "right"),
    Column("Temp", "right"),
)


@dataclass(frozen=True)
class WatchPanel(Result):
    """The content of the panel at one time."""

    devices: tuple[WatchedDevice, ...]
    #: The samples of the last minute, oldest first.
    samples: tuple[UtilizationSample, ...]
    #: The current number of seconds between two samples.
    every: float
    #: Whether samples are rarer since nothing changes.
    asleep: bool = False
    #: Why the panel has ended; None while it is running.
    ended: str | None = None
    #: A remark for the first panel of a session.
    hint: str = ""
    #: Whether what has ended the panel has ended its samples too.
    samples_lost: bool = False

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = []
        names = {device.name for device in self.devices}
        if len(names) == 1 and None not in names:
            totals = {device.memory_total for device in self.devices}
            total = f" · {bytes_(*totals)}" if len(totals) == 1 and None not in totals else ""
            count = f"{len(self.devices)} × " if len(self.devices) > 1 else ""
            blocks.append(Line.of(f"{count}{names.pop()}{total}", "dim"))
        if self.devices:
            blocks.append(Grid(_COLUMNS, [self._row(device) for device in self.devices]))
        blocks.append(self._status())
        if self.hint:
            blocks.append(Line.of(self.hint, "dim"))
        return blocks

    def _status(self) -> Line:
        last = "no sample yet"
        if self.samples:
            at = time.localtime(self.samples[-1].time)
            last = f"last sample {time.strftime('%H:%M:%S', at)}"
        if self.ended is not None:
            plot = "its samples are gone" if self.samples_lost else "'%gpu plot' draws the samples"
            text = f" · {last} · {plot}"
            return Line([Cell(f"■ ended: {self.ended}", "strong"), Cell(text, "dim")])
        pace = f"every {self.every:g} s"
        if self.asleep:
            pace = f"no change for a minute: samples {pace}, and when a cell runs"
        text = f" · {last} · {pace} · '%gpu watch off' ends it"
        # The notebook may be saved as it is, and read when the kernel has gone.
        return Line([Cell("● live while the kernel runs", "good"), Cell(text, "dim")])

    def _row(self, device: WatchedDevice) -> list[Cell]:
        style: Style = "dim" if device.visible is False else ""
        first = [Cell(str(device.index), style or "strong"), ordinal_cell(device)]
        latest = self.samples[-1].time if self.samples else 0.0
        seen = [(latest - each.time, each.of_device(device.index)) for each in self.samples]
        current = seen[-1][1] if seen else None
        error = "not listed" if current is None else current.error
        if error is not None:
            return [*first, error_cell(error), *[Cell(DASH, "dim")] * 4]
        total, limit = device.memory_total, device.power_limit
        return [
            *first,
            _figure(seen, "utilization", "utilisation", percent, (0, 100), style),
            _figure(seen, "memory_own", "memory, mine", bytes_, (0, total), style),
            _figure(seen, "memory_others", "memory, others'", bytes_, (0, total), style),
            _figure(seen, "power", "power", _watts, (0, limit), style),
            _figure(seen, "temperature", "temperature", _celsius, (_COLD, _HOT), style),
        ]

    def __repr__(self) -> str:
        return f"<WatchPanel: {'running' if self.ended is None else 'ended'}>"


def _figure(
    seen: Sequence[tuple[float, DeviceSample | None]],
    field: str,
    what: str,
    unit: Callable[[Any], str],
    scale: tuple[int, float | None],
    style: Style,
) -> Cell:
    """Return a field's current figure with its curve.

    ``seen`` has the samples with their seconds before the last one. ``scale`` is the curve's bottom
    and top; None for the top is the highest value.
    """
    changes: list[tuple[float, float | None]] = []
    value = None
    for age, sample in seen:
        value = getattr(sample, field, None)
        if not changes or value != changes[-1][1]:
            changes.append((age, value))
    known = [each for _, each in changes if each is not None]
    if not known:
        return Cell(DASH, "dim")
    low, top = scale
    height = (top or max(*known, low + 1)) - low
    points = [(age, None if each is None else (each - low) / height) for age, each in changes]
    label = f"{what}: {unit(min(known))} to {unit(max(known))} in the last minute"
    if top and field != "temperature":
        label += f", of {unit(top)}"
    dim = bool(style) or field == "memory_others"
    return Cell(unit(value), style, spark=Sparkline(points, _SECONDS, label, dim))
