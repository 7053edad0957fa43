"""What ``%gpu watch`` saw: the devices over time, and the cells that ran."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
from gpumagic.render.units import bytes_, rounded, seconds
from gpumagic.results.base import Result
from gpumagic.results.devices import Device, device_grid, ordinal_cell
from gpumagic.wording import plural

#: The figures of a device that change. Bytes, percent, degrees Celsius, watts.
_FIGURES = tuple("utilization memory_own memory_others memory_used temperature power error".split())


@dataclass(frozen=True)
class WatchSample:
    """The devices at one time, in seconds since the epoch; without their processes."""

    time: float
    devices: tuple[Device, ...] = ()
    #: Whether a gate refuses new work on every device (``%gpu off --soft``).
    gated: bool = False


@dataclass(frozen=True)
class CellSpan:
    """The time in which a cell ran, in seconds since the epoch."""

    #: The execution number; None for a cell outside the history.
    number: int | None
    start: float
    #: None while it runs.
    end: float | None = None
    failed: bool = False


@dataclass(frozen=True, repr=False)
class WatchPanel(Result):
    """The content of the panel at one time."""

    sample: WatchSample
    #: Why the panel has ended; None while it is live.
    ended: str | None = None

    def _blocks(self) -> list[Block]:
        # The notebook may be saved as it is, and read when the process has gone; and a client that
        # shows text does not update it.
        state = Styled(f"■ ended: {self.ended}", "strong")
        more = time.strftime(" · last change %H:%M:%S", time.localtime(self.sample.time))
        if self.ended is None:
            state = Styled("● live where HTML is shown, while the process runs", "good")
            more += " · NVML is open until '%gpu watch off'"
        grid = device_grid(self.sample.devices, self.sample.gated)
        return [*grid, Line.join(state, Styled(more, "dim"))]


@dataclass(frozen=True, repr=False)
class WatchHistory(Result):
    """The devices since ``%gpu watch`` began, for an hour at most at one sample a second."""

    _index = ("time", "gpu")
    _columns = ("cell", *_FIGURES)

    #: Oldest first; each holds until the next one.
    samples: tuple[WatchSample, ...] = ()
    cells: tuple[CellSpan, ...] = ()
    #: Whether devices were still being watched when this history was read; it does not change.
    running: bool = False

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the last sample."""
        return self.samples[-1].devices if self.samples else ()

    def values(self, index: int, figure: str) -> list[Any]:
        """Return a figure of one device in each sample; None where it is not known."""
        listed = ({each.index: each for each in sample.devices} for sample in self.samples)
        return [getattr(devices.get(index), figure, None) for devices in listed]

    def _blocks(self) -> list[Block]:
        if not self.samples:
            return [Line.of("Nothing was watched.")]
        took = seconds(self.samples[-1].time - self.samples[0].time)
        said = [f"{plural(len(self.samples), 'sample')} in {took}", plural(len(self.cells), "cell")]
        if self.running:
            said.append("still watched then: '%gpu plot -o' returns what there is now")
        return [
            Grid.of(
                self.devices,
                Figures("GPU", lambda d: Styled(str(d.index), "strong")),
                Column("Device", lambda d: ordinal_cell(d, self.samples[-1].gated)),
                Figures("Util mean", lambda d: rounded(self._mean(d.index), "%")),
                Figures("Util max", lambda d: rounded(self._max(d, "utilization"), "%")),
                Figures("Mine max", lambda d: bytes_(self._max(d, "memory_own")), rank=1),
                Figures("Others max", lambda d: bytes_(self._max(d, "memory_others")), rank=2),
                Figures("Power max", lambda d: rounded(self._max(d, "power"), "W"), rank=3),
                Figures("Temp max", lambda d: rounded(self._max(d, "temperature"), "°C"), rank=4),
            ),
            Line.of(" · ".join(said), "dim"),
        ]

    def _max(self, device: Device, figure: str) -> Any:
        known = (value for value in self.values(device.index, figure) if value is not None)
        return max(known, default=None)

    def _mean(self, index: int) -> float | None:
        """Return the mean utilisation over time; each sample holds until the next one."""
        lasted = [after.time - before.time for before, after in pairwise(self.samples)] or [1.0]
        used = zip(lasted, self.values(index, "utilization"), strict=False)
        known = [(span, value) for span, value in used if value is not None]
        total = sum(span for span, _ in known)
        return sum(span * value for span, value in known) / total if total else None

    def cell_at(self, time: float) -> CellSpan | None:
        """Return the cell that ran at ``time``; None between cells."""
        begun = [cell for cell in self.cells if cell.start <= time]
        running = begun and (begun[-1].end is None or time < begun[-1].end)
        return begun[-1] if running else None

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield the devices of each sample, with the time in UTC and the cell that ran then."""
        for sample in self.samples:
            cell = self.cell_at(sample.time)
            at = datetime.fromtimestamp(sample.time, timezone.utc)
            for each in sample.devices:
                named = {"time": at, "gpu": each.index, "cell": cell and cell.number}
                yield named | {name: getattr(each, name) for name in _FIGURES}

    def busy_devices(self) -> tuple[Device, ...]:
        """Return the devices that were utilised, or had memory of a process; if none, all."""
        busy = {
            each.index
            for sample in self.samples
            for each in sample.devices
            if each.utilization or each.memory_own or each.memory_others
        }
        return tuple(each for each in self.devices if each.index in busy) or self.devices
