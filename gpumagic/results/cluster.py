"""What the engines of a cluster report: their GPUs, what was chosen, and what a cell did there."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from gpumagic.render.blocks import Block, Cell, Column, Figures, Grid, Line, Text
from gpumagic.render.units import DASH, bytes_, cpu_seconds, percent, spans
from gpumagic.results.base import Series
from gpumagic.results.devices import Device, DeviceTable, errors, memory_cell
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.selection import status_cell
from gpumagic.results.timing import Sample, at_most
from gpumagic.system.text import grouped, noun, plural


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


@dataclass(frozen=True, repr=False)
class ClusterResult(Series[EngineResult]):
    """A result of each engine, by engine id."""

    _sequence = "engines"

    engines: tuple[EngineResult, ...] = ()

    @property
    def per_engine(self) -> dict[int, Any]:
        """The values, by engine id."""
        return {each.engine: each.value for each in self.engines if each.value is not None}

    @property
    def failed(self) -> dict[int, str]:
        """Why there is no value, by engine id."""
        return {each.engine: each.error for each in self.engines if each.error is not None}

    def _failures(self) -> list[Block]:
        """Return a line for each reason, with the engines that have it."""
        reasons = grouped((reason, engine) for engine, reason in self.failed.items())
        return [Line.of(f"✗ {engine_ids(of)}: {reason}", "bad") for reason, of in reasons.items()]

    def _measured(self) -> list[EngineResult]:
        """Return the engines with a value."""
        return [each for each in self.engines if each.value is not None]


def engine_ids(numbers: Sequence[int]) -> str:
    """Return ``engine 3`` or ``engines 0–3``."""  # noqa: RUF002
    return f"{noun(len(numbers), 'engine')} {spans(numbers)}"


@dataclass(frozen=True, repr=False)
class ClusterTable(ClusterResult):
    """Every engine and the devices that it sees (`DeviceTable`), by engine id."""

    #: How the cluster was found.
    source: str = ""

    @property
    def hosts(self) -> dict[str, tuple[EngineResult, ...]]:
        """The engines that have replied, by host."""
        found: dict[str, list[EngineResult]] = {}
        for each in self.engines:
            if each.host is not None and each.value is not None:
                found.setdefault(each.host, []).append(each)
        return {host: tuple(engines) for host, engines in sorted(found.items())}

    _index: ClassVar[tuple[str, ...]] = ("engine", "index")
    _columns: ClassVar[tuple[str, ...]] = ("host", *DeviceTable._columns)

    def _records(self) -> Iterator[Mapping[str, Any]]:
        for each in self.engines:
            for device in each.value or ():
                yield {"engine": each.engine, "host": each.host, **asdict(device)}

    def _blocks(self) -> list[Block]:
        columns: list[Column[Any]] = [
            Column("Host"),
            Figures("GPU"),
            Column("Engines"),
            Column("Name", rank=1),
            Figures("Memory used / total"),
            Figures("Util", rank=2),
            Figures("Processes", rank=3),
        ]
        rows = [
            [Cell(host, "strong") if place == 0 else "", *row]
            for host, engines in self.hosts.items()
            for place, row in enumerate(_of_host(engines))
        ]
        count = f"{plural(len(self), 'engine')} on {plural(len(self.hosts), 'host')}"
        if self.failed:
            count = f"{len(self) - len(self.failed)} of {count}"
        return [
            *([Grid.of(rows, columns)] if rows else []),
            *(line for host in self.hosts for line in self._errors(host)),
            *self._failures(),
            Line.of(f"{count} ({self.source})", "dim"),
        ]

    def _errors(self, host: str) -> Iterator[Line]:
        devices = (device for each in self.hosts[host] for device in each.value)
        return errors(devices, f"{host}, ")


def _of_host(engines: Sequence[EngineResult]) -> Iterator[list[Text]]:
    """Yield a row for each device, with the engines that see it, and for engines that see none."""
    listed = [(device, each.engine) for each in engines for device in each.value]
    devices = {_key(device): device for device, _ in reversed(listed)}
    for key, device in sorted(devices.items(), key=lambda pair: pair[1].index):
        sees = grouped((d.cuda, engine) for d, engine in listed if d.visible and _key(d) == key)
        named = "; ".join(f"{spans(of)} as {name}" for name, of in sorted(sees.items()))
        yield [
            Cell(str(device.index), "strong"),
            Cell(named, "good") if named else Cell("none", "dim"),
            device.name or DASH,
            memory_cell(device),
            percent(device.utilization),
            DASH if device.processes is None else str(len(device.processes)),
        ]
    without = grouped(
        (each.value.error or "no GPU", each.engine)
        for each in engines
        if not any(device.visible for device in each.value)
    )
    for why, of in without.items():
        yield [Cell(DASH, "dim"), spans(of), Cell(why, "dim"), "", "", ""]


def _key(device: Device) -> str:
    return device.uuid or str(device.index)


@dataclass(frozen=True, repr=False)
class ClusterSelection(ClusterResult):
    """What was chosen on every engine, as verified there (`Selection`)."""

    #: The text that the user typed.
    requested: str = ""

    @property
    def too_late(self) -> tuple[int, ...]:
        """The engines on which the choice did not take effect, because CUDA was initialised."""
        return tuple(i for i, chosen in self.per_engine.items() if chosen.status == "too-late")

    def _blocks(self) -> list[Block]:
        outcomes = grouped(
            ((each.host or DASH, each.value.status, _names(each.value.devices)), each.engine)
            for each in self
            if each.value is not None
        )
        rows = [
            (spans(of), host, status_cell(status), Cell.few(devices or ["no GPU"], 4))
            for (host, status, devices), of in outcomes.items()
        ]
        notes = grouped((note, i) for i, chosen in self.per_engine.items() for note in chosen.notes)
        lines = [Line.of(f"{engine_ids(of)}: {note}", "dim") for note, of in notes.items()]
        grid = Grid.of(
            rows, [Figures("Engine"), Column("Host", rank=1), Column("Status"), Column("Sees")]
        )
        return [*([grid] if rows else []), *self._failures(), *lines]


def _names(devices: Sequence[Device]) -> tuple[str, ...]:
    return tuple(f"{device.cuda} = GPU {device.index}" for device in devices)


@dataclass(frozen=True, repr=False)
class ClusterTiming(ClusterResult):
    """The times of a cell on every engine (`CudaTiming`), and statistics over the engines.

    ``gpu``, ``wall`` and ``cpu`` are `Sample`s in seconds with one value an engine: its median.
    They are None where no engine has such a time.
    """

    @property
    def gpu(self) -> Sample | None:
        return self._over("gpu")

    @property
    def wall(self) -> Sample | None:
        return self._over("wall")

    @property
    def cpu(self) -> Sample | None:
        return self._over("cpu")

    def _over(self, quantity: str) -> Sample | None:
        samples = [getattr(timing, quantity) for timing in self.per_engine.values()]
        values = tuple(sample.median for sample in samples if sample is not None)
        return Sample(values) if values else None

    @property
    def seconds(self) -> dict[int, float]:
        """The compared times, by engine id: median GPU times if all are exact, else wall times."""
        return {i: getattr(each, self._quantity).median for i, each in self.per_engine.items()}

    @property
    def _quantity(self) -> str:
        timings = self.per_engine.values()
        is_exact = all(each.gpu is not None and not each.gpu_at_most for each in timings)
        return "gpu" if is_exact else "wall"

    @property
    def slowest(self) -> EngineResult | None:
        """The engine with the longest time; None where no engine has a timing."""
        times = self.seconds
        return max(self._measured(), key=lambda each: times[each.engine], default=None)

    _index: ClassVar[tuple[str, ...]] = ("engine",)

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield the medians of each engine, in seconds per loop."""
        for each in self.engines:
            samples = {name: getattr(each.value, name, None) for name in ("gpu", "wall", "cpu")}
            medians = {f"{name}_time": of and of.median for name, of in samples.items()}
            bound = getattr(each.value, "bound", None)
            named = {"engine": each.engine, "host": each.host}
            yield {**named, **medians, "bound": bound, "error": each.error}

    def _blocks(self) -> list[Block]:
        if not self.per_engine:
            return self._failures()
        timings = self.per_engine.values()
        bounds = {"GPU": any(each.gpu_at_most for each in timings)}
        bounds["Wall"] = any(each.wall_at_most for each in timings)

        def row(name: str, sample: Sample | None) -> list[str]:
            values = [sample.median, sample.best, sample.worst] if sample else [None] * 3
            return [name, *(at_most(each, bounds.get(name, False)) for each in values)]

        rows = [row("GPU", self.gpu), row("Wall", self.wall), row("CPU", self.cpu)]
        over = Grid.of(
            rows, [Column("Over the engines"), Figures("Median"), Figures("Min"), Figures("Max")]
        )
        columns: list[Column[EngineResult]] = [
            Figures("Engine", lambda each: str(each.engine)),
            Column("Host", lambda each: each.host or DASH, rank=1),
            Figures("GPU", lambda each: each.value.gpu_text),
            Figures("Wall", lambda each: each.value.wall_text),
            Figures("CPU", lambda e: cpu_seconds(e.value.cpu.median, e.value.loops), rank=2),
            Column("Limited by", lambda each: Cell(_BOUND[each.value.bound], "dim"), rank=3),
        ]
        each = Grid.of(self._measured(), columns)
        return [over, each, *self._slowest(), *self._failures()]

    def _slowest(self) -> Iterator[Line]:
        """Yield a line on the slowest engine of several."""
        slowest, times = self.slowest, self.seconds
        median = statistics.median(times.values())
        if slowest is not None and len(times) > 1 and median > 0:
            ratio = times[slowest.engine] / median
            where = f"slowest: engine {slowest.engine} on {slowest.host}"
            what = {"gpu": "GPU", "wall": "wall"}[self._quantity]
            text = f"{where} ({ratio:.1f}\N{MULTIPLICATION SIGN} the median {what} time)"
            yield Line.of(text, "warn" if ratio >= 1.2 else "dim")  # less may be noise


_BOUND = {None: DASH, "gpu": "the GPU", "host": "the host"}


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

    def _blocks(self) -> list[Block]:
        columns: list[Column[Any]] = [
            Figures("Engine"),
            Column("Host", rank=1),
            Column("Device"),
            Figures("Allocated"),
            Figures("Reserved"),
            Figures("Peak above start"),
        ]
        rows = [
            [str(each.engine), each.host or DASH, *row]
            for each in self._measured()
            for row in _of(each.value)
        ]
        return [*([Grid.of(rows, columns)] if rows else []), *self._failures()]


def _of(delta: MemoryDelta) -> Iterator[list[Text]]:
    """Yield the change of each device; why there is none."""
    for ordinal, device in delta.devices.items():
        changes = (device.allocated, device.reserved, device.peak)
        yield [f"cuda:{ordinal}", *(bytes_(change, sign=True) for change in changes)]
    if not delta.devices:
        yield [Cell(delta.error or "no GPU memory in use", "dim"), *[Cell(DASH, "dim")] * 3]
