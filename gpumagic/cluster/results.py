"""What the engines of a cluster report, one beside the other: their GPUs, and what was chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Style, Styled
from gpumagic.render.units import DASH, rounded, spans
from gpumagic.results.base import Series
from gpumagic.results.devices import Device, DeviceTable, errors, memory_cell
from gpumagic.results.selection import status_cell
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
ENGINE: tuple[Column[EngineResult], ...] = (
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
        return said(((reason, engine) for engine, reason in self.failed.items()), "bad", "✗ ")


def said(
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
        yield from said(
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
            *ENGINE,
            Column("Status", lambda each: status_cell(each.value.status)),
            Column("Sees", lambda each: Styled.few(_names(each.value.devices) or ["no GPU"], 4)),
        )
        yield from self._failures()
        yield from said(
            (note, each.engine) for each in self._measured() for note in each.value.notes
        )


def _names(devices: Sequence[Device]) -> tuple[str, ...]:
    return tuple(f"{device.cuda} = GPU {device.index}" for device in devices)
