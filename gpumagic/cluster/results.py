"""What the engines of a cluster report: their GPUs, what was chosen, and what a cell did there."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Style, Styled
from gpumagic.render.units import DASH, at_most, bytes_, cpu_seconds, rounded, spans
from gpumagic.results.base import Series
from gpumagic.results.devices import Device, DeviceTable, errors, memory_cell
from gpumagic.results.selection import status_cell
from gpumagic.results.timing.sample import Sample
from gpumagic.wording import grouped, noun, plural


@dataclass(frozen=True)
class EngineResult:
    """What one engine reports."""

    #: ipyparallel's id of the engine.
    engine: int
    #: The name of the engine's host; None if the engine has not replied.
    host: str | None = None
    #: A `DeviceTable`, `Selection`, `CudaTiming` or `MemoryDelta`; None where there is none.
    value: Any = None
    #: Why there is none; one line.
    error: str | None = None


#: The columns that name an engine.
_ENGINE: tuple[Column[EngineResult], ...] = (
    Figures("Engine", lambda each: str(each.engine)),
    Column("Host", lambda each: each.host or DASH, rank=1),
)


@dataclass(frozen=True, repr=False)
class ClusterResult(Series[EngineResult]):
    """A result of each engine, by engine id."""

    _sequence = "engines"

    engines: tuple[EngineResult, ...] = ()

    @property
    def per_engine(self) -> dict[int, Any]:
        """The values, by engine id."""
        return {each.engine: each.value for each in self._measured()}

    @property
    def failed(self) -> dict[int, str]:
        """Why there is no value, by engine id."""
        return {each.engine: each.error for each in self.engines if each.error is not None}

    def _measured(self) -> list[EngineResult]:
        """Return the engines with a value."""
        return [each for each in self.engines if each.value is not None]

    def _failures(self) -> Iterator[Line]:
        """Yield why there is no value."""
        return _said(((reason, engine) for engine, reason in self.failed.items()), "bad", "✗ ")


def _said(
    remarks: Iterable[tuple[str, int]], style: Style = "dim", sign: str = ""
) -> Iterator[Line]:
    """Yield a line for each remark on engines, with all those of which it is true."""
    for remark, engines in grouped(remarks).items():
        yield Line.of(f"{sign}{engine_ids(engines)}: {remark}", style)


def engine_ids(numbers: Sequence[int]) -> str:
    """Return ``engine 3`` or ``engines 0–3``."""  # noqa: RUF002
    return f"{noun(len(numbers), 'engine')} {spans(numbers)}"


@dataclass(frozen=True, repr=False)
class ClusterTable(ClusterResult):
    """Every engine and the devices that it sees (`DeviceTable`), by engine id."""

    _index = ("engine", "index")
    _columns = ("host", *DeviceTable._columns)

    #: How the cluster was found.
    source: str = ""

    @property
    def hosts(self) -> dict[str, list[EngineResult]]:
        """The engines that have replied, by host."""
        found: dict[str, list[EngineResult]] = {}
        for each in self._measured():
            found.setdefault(each.host or DASH, []).append(each)
        return dict(sorted(found.items()))

    def _records(self) -> Iterator[Mapping[str, Any]]:
        for each in self._measured():
            for device in each.value:
                yield {"engine": each.engine, "host": each.host, **asdict(device)}

    def _blocks(self) -> Iterator[Block]:
        yield Grid.of(
            self._devices(),
            Column("Host", lambda of: Styled(of[0], "strong")),
            Figures("GPU", lambda of: Styled(str(of[1].index), "strong")),
            Column(
                "Engines",
                lambda of: Styled(of[2], "good") if of[2] else Styled("none", "dim"),
            ),
            Column("Name", lambda of: of[1].name or DASH, rank=1),
            Figures("Memory used / total", lambda of: memory_cell(of[1])),
            Figures("Util", lambda of: rounded(of[1].utilization, "%"), rank=2),
            Figures("Processes", lambda of: _count(of[1]), rank=3),
        )
        for host, engines in self.hosts.items():
            yield from errors((device for each in engines for device in each.value), f"{host}, ")
        yield from _said(
            (each.value.error or "sees no GPU", each.engine)
            for each in self._measured()
            if not any(device.visible for device in each.value)
        )
        yield from self._failures()
        count = f"{plural(len(self), 'engine')} on {plural(len(self.hosts), 'host')}"
        if self.failed:
            count = f"{len(self) - len(self.failed)} of {count}"
        yield Line.of(f"{count} ({self.source})", "dim")

    def _devices(self) -> Iterator[tuple[str, Device, str]]:
        """Yield each host's devices, with the engines that see them: ``0–1 as cuda:0``."""  # noqa: RUF002
        for host, engines in self.hosts.items():
            reports: dict[str | int, list[tuple[Device, int]]] = {}
            for each in engines:
                for device in each.value:
                    reports.setdefault(device.uuid or device.index, []).append(
                        (device, each.engine)
                    )
            for reported in sorted(reports.values(), key=lambda reported: reported[0][0].index):
                sees = grouped((device.cuda, of) for device, of in reported if device.visible)
                named = (f"{spans(of)} as {name}" for name, of in sorted(sees.items()))
                yield host, reported[0][0], "; ".join(named)


def _count(device: Device) -> str:
    return DASH if device.processes is None else str(len(device.processes))


@dataclass(frozen=True, repr=False)
class ClusterSelection(ClusterResult):
    """What was chosen on every engine, as verified there (`Selection`)."""

    #: The text that the user typed.
    requested: str = ""

    @property
    def too_late(self) -> tuple[int, ...]:
        """The engines on which the choice did not take effect, because CUDA was initialised."""
        return tuple(i for i, chosen in self.per_engine.items() if chosen.status == "too-late")

    def _blocks(self) -> Iterator[Block]:
        yield Grid.of(
            self._measured(),
            *_ENGINE,
            Column("Status", lambda each: status_cell(each.value.status)),
            Column("Sees", lambda each: Styled.few(_names(each.value.devices) or ["no GPU"], 4)),
        )
        yield from self._failures()
        yield from _said(
            (note, each.engine) for each in self._measured() for note in each.value.notes
        )


def _names(devices: Sequence[Device]) -> tuple[str, ...]:
    return tuple(f"{device.cuda} = GPU {device.index}" for device in devices)


@dataclass(frozen=True, repr=False)
class ClusterTiming(ClusterResult):
    """The times of a cell on every engine (`CudaTiming`), and statistics over the engines.

    ``gpu``, ``wall`` and ``cpu`` are `Sample`s in seconds with one value an engine: its median.
    They are None where no engine has such a time.
    """

    _index = ("engine",)

    @property
    def gpu(self) -> Sample | None:
        return self._medians("gpu")

    @property
    def wall(self) -> Sample | None:
        return self._medians("wall")

    @property
    def cpu(self) -> Sample | None:
        return self._medians("cpu")

    def _medians(self, name: str) -> Sample | None:
        """Return the medians of the engines that have such a time; None where none has."""
        samples = [getattr(each, name) for each in self.per_engine.values()]
        return Sample(tuple(each.median for each in samples if each)) if any(samples) else None

    @property
    def slowest(self) -> EngineResult | None:
        """The engine with the longest time; None where no engine has a timing."""
        _, times = self.compared()
        return max(self._measured(), key=lambda each: times[each.engine], default=None)

    def compared(self) -> tuple[str, dict[int, float]]:
        """Return the times that are compared, by engine id, and what they are.

        Median GPU times if all are exact, else wall times.
        """
        timings = self.per_engine
        if all(each.gpu is not None and not each.gpu_at_most for each in timings.values()):
            return "GPU", {i: each.gpu.median for i, each in timings.items()}
        return "wall", {i: each.wall.median for i, each in timings.items()}

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield the medians of each engine, in seconds per loop."""
        for each in self.engines:
            samples = {name: getattr(each.value, name, None) for name in ("gpu", "wall", "cpu")}
            medians = {f"{name}_time": of and of.median for name, of in samples.items()}
            limited_by = getattr(each.value, "limited_by", None)
            named = {"engine": each.engine, "host": each.host}
            yield {**named, **medians, "limited_by": limited_by, "error": each.error}

    def _blocks(self) -> Iterable[Block]:
        timings = self.per_engine.values()
        if not timings:
            return self._failures()

        def row(name: str, sample: Sample | None, is_bound: bool = False) -> list[str]:
            values = [sample.median, sample.best, sample.worst] if sample else [None] * 3
            return [name, *(at_most(value, is_bound) for value in values)]

        rows = [
            row("GPU", self.gpu, any(each.gpu_at_most for each in timings)),
            row("Wall", self.wall, any(each.wall_at_most for each in timings)),
            row("CPU", self.cpu),
        ]
        over = Grid.of(
            rows,
            Column("Over the engines", itemgetter(0)),
            Figures("Median", itemgetter(1)),
            Figures("Min", itemgetter(2)),
            Figures("Max", itemgetter(3)),
        )
        by_engine = Grid.of(
            self._measured(),
            *_ENGINE,
            Figures("GPU", lambda each: each.value.gpu_text),
            Figures("Wall", lambda each: each.value.wall_text),
            Figures("CPU", lambda e: cpu_seconds(e.value.cpu.median, e.value.loops), rank=2),
            Column(
                "Limited by", lambda each: Styled(_LIMITED_BY[each.value.limited_by], "dim"), rank=3
            ),
        )
        return [over, by_engine, *self._slowest(), *self._failures()]

    def _slowest(self) -> Iterator[Line]:
        """Yield a line on the slowest engine of several."""
        slowest, (what, times) = self.slowest, self.compared()
        median = statistics.median(times.values())
        if slowest is not None and len(times) > 1 and median > 0:
            ratio = times[slowest.engine] / median
            where = f"slowest: engine {slowest.engine} on {slowest.host}"
            text = f"{where} ({ratio:.1f}\N{MULTIPLICATION SIGN} the median {what} time)"
            yield Line.of(text, "warn" if ratio >= 1.2 else "dim")  # less may be noise


_LIMITED_BY = {None: DASH, "gpu": "the GPU", "host": "the host"}


@dataclass(frozen=True, repr=False)
class ClusterMemory(ClusterResult):
    """The change of GPU memory by a cell on every engine (`MemoryDelta`). Bytes, exact."""

    @property
    def peak(self) -> dict[int, int]:
        """The highest peak among each engine's devices in bytes, by engine id."""
        return {
            engine: max(device.peak for device in delta.devices.values())
            for engine, delta in self.per_engine.items()
            if delta.devices
        }

    def _blocks(self) -> Iterator[Block]:
        changes = (
            (each, ordinal, change)
            for each in self._measured()
            for ordinal, change in each.value.devices.items()
        )
        yield Grid.of(
            changes,
            Figures("Engine", lambda of: str(of[0].engine)),
            Column("Host", lambda of: of[0].host or DASH, rank=1),
            Column("Device", lambda of: f"cuda:{of[1]}"),
            Figures("Allocated", lambda of: bytes_(of[2].allocated, sign=True)),
            Figures("Reserved", lambda of: bytes_(of[2].reserved, sign=True)),
            Figures("Peak above start", lambda of: bytes_(of[2].peak, sign=True)),
        )
        yield from _said(
            (each.value.error or "no GPU memory in use", each.engine)
            for each in self._measured()
            if not each.value.devices
        )
        yield from self._failures()
