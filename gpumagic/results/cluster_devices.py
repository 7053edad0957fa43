"""The devices that the engines of a cluster see."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line
from gpumagic.render.units import bytes_, percent, spans
from gpumagic.results.base import Series, data_frame, plain
from gpumagic.results.cluster_engines import EngineResult, failure_lines, failures
from gpumagic.results.devices import Device, DeviceTable, memory_cell
from gpumagic.results.processes import Process, most_memory
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

_COLUMNS = (
    Column("Host"),
    Column("GPU", "right"),
    Column("Engines"),
    Column("Name", rank=1),
    Column("Memory used / total", "right"),
    Column("Util", "right", rank=2),
    Column("Processes", "right", rank=3),
)
_PROCESS_COLUMNS = (
    Column("Host"),
    Column("GPU", "right"),
    Column("PID", "right"),
    Column("Engine", "right"),
    Column("User", rank=2),
    Column("Memory", "right"),
    Column("Command", least=12),
)


@dataclass(frozen=True)
class EngineDevices(EngineResult):
    """The devices of an engine's host, and which of them the engine sees."""

    table: DeviceTable | None = None
    #: The UUIDs of the devices that the engine was started with.
    given: tuple[str, ...] = ()
    #: The UUIDs of the devices that were chosen for it since; empty where none were.
    pinned: tuple[str, ...] = ()
    #: Distinguishes machines of one name; None where the system has no machine id.
    machine: str | None = None
    #: The number of processes in ``torch.distributed``'s group; None where there is none.
    world_size: int | None = None
    backend: str | None = None


@dataclass(frozen=True)
class ClusterTable(Series[EngineDevices]):
    """Every engine and the devices that it sees, by engine id."""

    items_in: ClassVar[str] = "engines"

    engines: tuple[EngineDevices, ...] = ()
    #: Where the cluster was found: a profile or a connection file.
    source: str = ""
    #: The time limit for the engines' replies; seconds.
    timeout: float | None = None
    show_processes: bool = False

    @property
    def hosts(self) -> dict[str, tuple[EngineDevices, ...]]:
        """The engines that have replied, by host."""
        found: dict[str, list[EngineDevices]] = {}
        for each in self.engines:
            if each.host is not None and each.table is not None:
                found.setdefault(each.host, []).append(each)
        return {host: tuple(engines) for host, engines in sorted(found.items())}

    @property
    def silent(self) -> tuple[EngineDevices, ...]:
        """The engines without a table; their ``error`` says why."""
        return tuple(each for each in self.engines if each.table is None)

    def _blocks(self) -> list[Block]:
        rows: list[list[Cell]] = []
        for host, engines in self.hosts.items():
            rows += _host(host, engines)
        blocks: list[Block] = [Grid(_COLUMNS, rows)] if rows else []
        blocks += failure_lines(failures(self.silent))
        count = f"{plural(len(self), 'engine')} on {plural(len(self.hosts), 'host')}"
        if self.silent:
            count = f"{len(self) - len(self.silent)} of {count}"
        blocks.append(Line.of(f"{count} ({self.source})", "dim"))
        if self.show_processes:
            blocks += _processes(self)
        return blocks

    def __repr__(self) -> str:
        return f"<ClusterTable: {plural(len(self), 'engine')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row an engine and device (needs pandas)."""
        rows = [
            {"engine": each.engine, "host": each.host, "rank": each.rank, **plain(device)}
            for each in self.engines
            for device in each.table or ()
        ]
        columns = ["engine", "host", "rank", *(f.name for f in dataclasses.fields(Device))]
        return data_frame(rows, columns, index=["engine", "index"])


def _host(host: str, engines: Sequence[EngineDevices]) -> list[list[Cell]]:
    """Return a row for each device, with the engines that see it, and for engines that see none."""
    devices: dict[str, Device] = {}
    seen_by: dict[str, dict[str, list[int]]] = {}
    without: dict[str, list[int]] = {}
    for each in engines:
        assert each.table is not None
        sees = False
        for device in each.table:
            key = device.uuid or str(device.index)
            devices.setdefault(key, device)
            if device.visible:
                sees = True
                name = "cuda:?" if device.ordinal is None else f"cuda:{device.ordinal}"
                seen_by.setdefault(key, {}).setdefault(name, []).append(each.engine)
        if not sees:
            why = each.table.error or "no GPU"
            without.setdefault(why, []).append(each.engine)
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
    count = DASH if device.processes is None else str(len(device.processes))
    return [
        Cell(str(device.index), "strong"),
        Cell(sees, "good") if sees else Cell("none", "dim"),
        Cell(device.name or DASH),
        memory_cell(device),
        Cell(percent(device.utilization)),
        Cell(count, "" if count not in ("0", DASH) else "dim"),
    ]


def _processes(table: ClusterTable) -> list[Block]:
    found: list[tuple[tuple[str, ...], Process]] = []
    for host, engines in table.hosts.items():
        of_pid = {each.pid: str(each.engine) for each in engines}
        listed: dict[tuple[int, int], Process] = {}
        for each in engines:
            for device in each.table or ():
                for process in device.processes or ():
                    listed.setdefault((device.index, process.pid), process)
        found += [
            ((host, str(index), of_pid.get(pid, DASH)), process)
            for (index, pid), process in sorted(listed.items(), key=lambda pair: pair[0])
        ]
    if not found:
        return [Line.of("No process uses a GPU, as far as NVML lists them.", "dim")]
    shown, rest = most_memory(found)
    rows = [
        [
            *map(Cell, (host, index, str(process.pid), engine)),
            Cell(process.user or DASH),
            Cell(bytes_(process.memory)),
            process.title,
        ]
        for (host, index, engine), process in shown
    ]
    return [Grid(_PROCESS_COLUMNS, rows), *rest]
