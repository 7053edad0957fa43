"""The samples of ``%gpu watch``: the devices over time, and the cells that ran."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line
from gpumagic.render.units import bytes_, percent, rounded, seconds
from gpumagic.results.base import Result, data_frame
from gpumagic.results.devices import Device
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

    from gpumagic.render.plots import Plot

_COLUMNS = (
    Column("GPU", "right"),
    Column("Device"),
    Column("Util, mean", "right"),
    Column("Util, highest", "right"),
    Column("Mine, highest", "right", rank=1),
    Column("Others, highest", "right", rank=2),
    Column("Power, highest", "right", rank=3),
    Column("Temp, highest", "right", rank=4),
)


@dataclass(frozen=True)
class WatchedDevice:
    """The properties of a watched device that do not change."""

    index: int
    #: The CUDA ordinal in this process; None where not known.
    ordinal: int | None = None
    uuid: str | None = None
    name: str | None = None
    memory_total: int | None = None
    power_limit: float | None = None
    #: Whether this process can use it; None where not known.
    visible: bool | None = None

    @classmethod
    def of(cls, device: Device, before: WatchedDevice | None = None) -> WatchedDevice:
        """Return the properties of a device; of one with an error, unknown ones as ``before``."""
        fields = {f.name: getattr(device, f.name) for f in dataclasses.fields(cls)}
        if before is not None and device.error is not None:
            fields = {n: getattr(before, n) if v is None else v for n, v in fields.items()}
        return cls(**fields)

    @property
    def label(self) -> str:
        """The device's name: ``GPU 0 (cuda:1)``."""
        return f"GPU {self.index}" + ("" if self.ordinal is None else f" (cuda:{self.ordinal})")


@dataclass(frozen=True)
class DeviceSample:
    """NVML's figures of a device. Bytes, percent, degrees Celsius, watts; None where not known."""

    index: int
    utilization: int | None = None
    memory_own: int | None = None
    memory_others: int | None = None
    memory_used: int | None = None
    temperature: int | None = None
    power: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, device: Device) -> DeviceSample:
        """Return the figures of a device."""
        return cls(**{f.name: getattr(device, f.name) for f in dataclasses.fields(cls)})


@dataclass(frozen=True)
class UtilizationSample:
    """NVML's figures of all devices at one time, in seconds since the epoch."""

    time: float
    devices: tuple[DeviceSample, ...] = ()

    def of_device(self, index: int) -> DeviceSample | None:
        """Return the sample of one device; None where it was not listed."""
        if index < len(self.devices) and self.devices[index].index == index:
            return self.devices[index]
        return next((each for each in self.devices if each.index == index), None)


@dataclass(frozen=True)
class CellSpan:
    """The time in which a cell ran, in seconds since the epoch."""

    #: The execution number; None for a cell outside the history.
    number: int | None
    #: The cell's first line.
    source: str
    start: float
    #: None while it runs.
    end: float | None = None
    failed: bool = False


@dataclass(frozen=True)
class WatchHistory(Result):
    """The devices since ``%gpu watch`` began."""

    devices: tuple[WatchedDevice, ...] = ()
    #: Oldest first. Samples are rarer while nothing changes: each holds until the next one.
    samples: tuple[UtilizationSample, ...] = ()
    cells: tuple[CellSpan, ...] = ()
    #: Every how many-th sample is kept: their number is bounded.
    stride: int = 1
    #: How many older cells are not in ``cells``.
    forgotten: int = 0
    #: Whether devices were still being watched when this history was read; it does not change.
    running: bool = False

    def of_device(self, index: int) -> list[DeviceSample | None]:
        """Return the samples of one device; None where it was not listed."""
        return [sample.of_device(index) for sample in self.samples]

    def _blocks(self) -> list[Block]:
        if not self.samples:
            return [Line.of("Nothing was watched.")]
        rows = [self._row(device) for device in self.devices]
        return [Grid(_COLUMNS, rows), Line.of(self._summary(), "dim")]

    def _row(self, device: WatchedDevice) -> list[Cell]:
        known = [each for each in self.of_device(device.index) if each is not None]
        return [
            Cell(str(device.index), "strong"),
            ordinal_cell(device),
            Cell(percent(self._mean(device.index))),
            Cell(percent(_highest(each.utilization for each in known))),
            Cell(bytes_(_highest(each.memory_own for each in known))),
            Cell(bytes_(_highest(each.memory_others for each in known))),
            Cell(rounded(_highest(each.power for each in known), "W")),
            Cell(rounded(_highest(each.temperature for each in known), "°C")),
        ]

    def _mean(self, index: int) -> float | None:
        """Return the mean utilisation over time; each sample holds until the next one."""
        times = [sample.time for sample in self.samples]
        found = [None if each is None else each.utilization for each in self.of_device(index)]
        spans = [(b - a, v) for a, b, v in zip(times, times[1:], found, strict=False)]
        if not spans:
            spans = [(1.0, value) for value in found]
        total = sum(span for span, value in spans if value is not None)
        if not total:
            return None
        return sum(span * value for span, value in spans if value is not None) / total

    def _summary(self) -> str:
        took = seconds(self.samples[-1].time - self.samples[0].time)
        parts = [f"{plural(len(self.samples), 'sample')} in {took}"]
        if self.stride > 1:
            parts.append(f"one of {self.stride} kept")
        parts.append(plural(len(self.cells) + self.forgotten, "cell"))
        if self.running:
            parts.append("still watched then: '%gpu plot -o' returns what there is now")
        return " · ".join(parts)

    def __repr__(self) -> str:
        samples, devices = plural(len(self.samples), "sample"), plural(len(self.devices), "device")
        return f"<WatchHistory: {samples} of {devices}>"

    def cell_at(self, time: float) -> CellSpan | None:
        """Return the cell that ran at ``time``; None between cells."""
        place = bisect_right([cell.start for cell in self.cells], time) - 1
        if place < 0:
            return None
        cell = self.cells[place]
        return cell if cell.end is None or time < cell.end else None

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each sample and device (needs pandas).

        ``time`` is in UTC, ``cell`` the number of the cell that ran then. Bytes, percent, °C, W.
        """
        figures = [f.name for f in dataclasses.fields(DeviceSample) if f.name != "index"]
        rows: list[list[Any]] = []
        for sample in self.samples:
            cell = self.cell_at(sample.time)
            number = None if cell is None else cell.number
            rows += [
                [int(sample.time * 1e9), each.index, number, *(getattr(each, n) for n in figures)]
                for each in sample.devices
            ]
        columns = ["time", "gpu", "cell", *figures]
        whole = [n for n in figures if n not in ("power", "error")]
        types = {"time": "datetime64[ns, UTC]", "power": float, **dict.fromkeys(whole, "Int64")}
        return data_frame(rows, columns, index=["time", "gpu"], types={"cell": "Int64", **types})

    def busy_devices(self) -> tuple[WatchedDevice, ...]:
        """Return the devices that were utilised, or had memory of a process; if none, all."""
        busy = {
            each.index
            for sample in self.samples
            for each in sample.devices
            if each.utilization or each.memory_own or each.memory_others
        }
        found = tuple(device for device in self.devices if device.index in busy)
        return found or self.devices

    def plot(self) -> Plot:
        """Return a picture of utilisation and memory over time with the cells, by device.

        Idle devices are left out.

        Raises:
            DependencyError: matplotlib is not installed.
        """
        from gpumagic.render.plots import Span, over_time

        start = self.samples[0].time if self.samples else 0.0
        times = [sample.time - start for sample in self.samples]
        last = times[-1] if times else 0.0
        spans = [
            Span(
                max(cell.start - start, 0.0),
                last if cell.end is None else cell.end - start,
                "" if cell.number is None else f"[{cell.number}]",
                cell.failed,
            )
            for cell in self.cells
        ]
        drawn = self.busy_devices()
        panels = {_title(device): self._curves(device) for device in drawn}
        idle = len(self.devices) - len(drawn)
        note = f"{plural(idle, 'idle GPU')} left out" if idle else ""
        return over_time(times, panels, spans, note)

    def _curves(self, device: WatchedDevice) -> dict[str, Sequence[float | None]]:
        """Return the curves of a device in percent: of time, and of its memory."""
        samples = self.of_device(device.index)

        def share(value: int | None) -> float | None:
            total = device.memory_total
            return None if value is None or not total else 100 * value / total

        return {
            "utilisation": [None if s is None else s.utilization for s in samples],
            "memory, all": [None if s is None else share(s.memory_used) for s in samples],
            "memory, mine": [None if s is None else share(s.memory_own) for s in samples],
        }


def ordinal_cell(device: WatchedDevice) -> Cell:
    """Return a device's CUDA ordinal, or that it is hidden; ``cuda:?`` where that is to come."""
    if device.ordinal is not None:
        return Cell(f"cuda:{device.ordinal}", "good")
    if device.visible is False:
        return Cell("hidden", "dim")
    return Cell("cuda:?" if device.visible else DASH, "dim")


def _title(device: WatchedDevice) -> str:
    """Return the title of a device's panel, with its memory: the curves are in percent."""
    memory = "" if device.memory_total is None else f"\nmemory: {bytes_(device.memory_total)}"
    return f"{device.label}{memory}"


def _highest(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)
