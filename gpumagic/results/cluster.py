"""What the engines of a cluster report: the base, their GPUs and choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, few
from gpumagic.render.units import bytes_, percent, spans
from gpumagic.results.base import Series, data_frame, plain
from gpumagic.results.devices import Device, DeviceTable, memory_cell
from gpumagic.results.processes import Process, most_memory
from gpumagic.results.selection import STATUS_STYLES
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

#: The most engines that each have a row; of more engines, half as many have one.
ROWS = 16


@dataclass(frozen=True)
class EngineResult:
    """What one engine reports."""

    #: ipyparallel's id of the engine.
    engine: int
    #: The name of the engine's host; None if the engine has not replied.
    host: str | None = None
    pid: int | None = None
    #: A `DeviceTable`, `Selection`, `CudaTiming` or `MemoryDelta`; None where there is none.
    value: Any = None
    #: Why there is none; one line.
    error: str | None = None


@dataclass(frozen=True)
class ClusterResult(Series[EngineResult]):
    """A result of each engine, by engine id."""

    items_in: ClassVar[str] = "engines"

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
        engines: dict[str, list[int]] = {}
        for engine, reason in self.failed.items():
            engines.setdefault(reason, []).append(engine)
        return [Line.of(f"✗ {engine_ids(ids)}: {reason}", "bad") for reason, ids in engines.items()]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {plural(len(self.engines), 'engine')}>"


def engine_ids(numbers: Sequence[int]) -> str:
    """Return ``engine 3`` or ``engines 0–3``."""  # noqa: RUF002
    return f"engine{'' if len(numbers) == 1 else 's'} {spans(numbers)}"


def highest(
    engines: Iterable[EngineResult], value: Callable[[EngineResult], float]
) -> list[EngineResult]:
    """Return the engines with a value; of more than `ROWS` those with the highest, by id."""
    measured = [each for each in engines if each.value is not None]
    if len(measured) <= ROWS:
        return measured
    chosen = sorted(measured, key=value, reverse=True)[: ROWS // 2]
    return sorted(chosen, key=lambda each: each.engine)


# --- the devices -------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class ClusterTable(ClusterResult):
    """Every engine and the devices that it sees (`DeviceTable`), by engine id."""

    #: How the cluster was found.
    source: str = ""
    show_processes: bool = False

    @property
    def hosts(self) -> dict[str, tuple[EngineResult, ...]]:
        """The engines that have replied, by host."""
        found: dict[str, list[EngineResult]] = {}
        for each in self.engines:
            if each.host is not None and each.value is not None:
                found.setdefault(each.host, []).append(each)
        return {host: tuple(engines) for host, engines in sorted(found.items())}

    def _blocks(self) -> list[Block]:
        columns = (
            Column("Host"),
            Column("GPU", "right"),
            Column("Engines"),
            Column("Name", rank=1),
            Column("Memory used / total", "right"),
            Column("Util", "right", rank=2),
            Column("Processes", "right", rank=3),
        )
        rows = [row for host, engines in self.hosts.items() for row in _host(host, engines)]
        blocks: list[Block] = [Grid(columns, rows)] if rows else []
        blocks += self._failures()
        count = f"{plural(len(self), 'engine')} on {plural(len(self.hosts), 'host')}"
        if self.failed:
            count = f"{len(self) - len(self.failed)} of {count}"
        blocks.append(Line.of(f"{count} ({self.source})", "dim"))
        return [*blocks, *(_processes(self) if self.show_processes else ())]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row an engine and device (needs pandas)."""
        rows = [
            {"engine": each.engine, "host": each.host, **plain(device)}
            for each in self.engines
            for device in each.value or ()
        ]
        columns = ["engine", "host", *(f.name for f in dataclasses.fields(Device))]
        return data_frame(rows, columns, index=["engine", "index"])


def _host(host: str, engines: Sequence[EngineResult]) -> list[list[Cell]]:
    """Return a row for each device, with the engines that see it, and for engines that see none."""
    devices: dict[str, Device] = {}
    seen_by: dict[str, dict[str, list[int]]] = {}
    without: dict[str, list[int]] = {}
    for each in engines:
        table: DeviceTable = each.value
        for device in table:
            key = device.uuid or str(device.index)
            devices.setdefault(key, device)
            if device.visible:
                name = "cuda:?" if device.ordinal is None else f"cuda:{device.ordinal}"
                seen_by.setdefault(key, {}).setdefault(name, []).append(each.engine)
        if not any(device.visible for device in table):
            without.setdefault(table.error or "no GPU", []).append(each.engine)
    rows = [
        _device(device, seen_by.get(key, {}))
        for key, device in sorted(devices.items(), key=lambda pair: pair[1].index)
    ]
    for why, of in without.items():
        rows.append([Cell(DASH, "dim"), Cell(spans(of)), Cell(why, "dim"), *[Cell("")] * 3])
    first = Cell(host, "strong")
    return [[first if place == 0 else Cell(""), *row] for place, row in enumerate(rows)]


def _device(device: Device, engines: Mapping[str, Sequence[int]]) -> list[Cell]:
    sees = "; ".join(f"{spans(of)} as {name}" for name, of in sorted(engines.items()))
    if device.error is not None:
        lost = [Cell(device.name or DASH), Cell(f"✗ {device.error}", "bad"), Cell(""), Cell("")]
        return [Cell(str(device.index), "strong"), Cell(sees or DASH), *lost]
    return [
        Cell(str(device.index), "strong"),
        Cell(sees, "good") if sees else Cell("none", "dim"),
        Cell(device.name or DASH),
        memory_cell(device),
        Cell(percent(device.utilization)),
        Cell(DASH if device.processes is None else str(len(device.processes))),
    ]


def _processes(table: ClusterTable) -> list[Block]:
    """Return the processes on the hosts' devices, each once, and which of them are engines."""
    columns = (
        Column("Host"),
        Column("GPU", "right"),
        Column("PID", "right"),
        Column("Engine", "right"),
        Column("User", rank=2),
        Column("Memory", "right"),
        Column("Command", least=12),
    )
    found: dict[tuple[str, int, int], tuple[str, Process]] = {}
    for host, engines in table.hosts.items():
        of_pid = {each.pid: str(each.engine) for each in engines}
        for device in (device for each in engines for device in each.value):
            for process in device.processes or ():
                engine = of_pid.get(process.pid, DASH)
                found[host, device.index, process.pid] = (engine, process)
    if not found:
        return [Line.of("No process uses a GPU, as far as NVML lists them.", "dim")]
    shown, rest = most_memory([((key, engine), each) for key, (engine, each) in found.items()])
    rows = [
        [
            *(Cell(host), Cell(str(index)), Cell(str(pid)), Cell(engine)),
            *(Cell(process.user or DASH), Cell(bytes_(process.memory)), process.title),
        ]
        for ((host, index, pid), engine), process in shown
    ]
    return [Grid(columns, rows), *rest]


# --- choices -----------------------------------------------------------------------------------


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
        columns = (
            Column("Engine", "right"),
            Column("Host", rank=1),
            Column("Status"),
            Column("Sees"),
        )
        groups: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
        for each in self:
            if each.value is not None:
                outcome = (each.host or DASH, each.value.status, _names(each.value.devices))
                groups.setdefault(outcome, []).append(each.engine)
        rows = [
            [
                *(Cell(spans(of)), Cell(host), Cell(status, STATUS_STYLES[status])),
                few(devices, 4) if devices else Cell("no GPU"),
            ]
            for (host, status, devices), of in groups.items()
        ]
        notes: dict[str, list[int]] = {}
        for engine, chosen in self.per_engine.items():
            for note in chosen.notes:
                notes.setdefault(note, []).append(engine)
        lines = [Line.of(f"{engine_ids(of)}: {note}", "dim") for note, of in notes.items()]
        return [*([Grid(columns, rows)] if rows else []), *self._failures(), *lines]


def _names(devices: Sequence[Device]) -> tuple[str, ...]:
    return tuple(f"cuda:{'?' if d.ordinal is None else d.ordinal} = GPU {d.index}" for d in devices)
