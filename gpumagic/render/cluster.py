"""The engines of a cluster: their devices, choices, times and memory, as blocks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, Style
from gpumagic.render.devices import STATUS_STYLES, memory_cell, most_memory, short_command
from gpumagic.render.kernels import kernels
from gpumagic.render.units import bytes_, cpu_seconds, percent, seconds, spans
from gpumagic.results import Device, Process
from gpumagic.results.cluster import (
    ClusterMemory,
    ClusterSelection,
    ClusterTable,
    ClusterTiming,
    EngineDevices,
    EngineResult,
    EngineSelection,
    ProcessGroup,
)
from gpumagic.system.text import noun, plural

#: Engines of which each has a row; of more, only the most telling ones.
_ROWS = 16
#: Engines of which each shows its kernels.
_KERNELS = 4


def _engines(numbers: Sequence[int]) -> str:
    return f"{noun(len(numbers), 'engine')} {spans(numbers)}"


def _errors(engines: Iterable[EngineResult]) -> list[Block]:
    """A line for each reason, with the engines that it holds for."""
    reasons: dict[str, list[int]] = {}
    for each in engines:
        if each.error is not None:
            reasons.setdefault(each.error, []).append(each.engine)
    return [Line.of(f"{_engines(of)}: {reason}", "bad") for reason, of in reasons.items()]


# --- the table ---------------------------------------------------------------------------------

_COLUMNS = (
    Column("Host"),
    Column("GPU", "right"),
    Column("Engines"),
    Column("Name", rank=1),
    Column("Memory used / total"),
    Column("Util", "right", rank=2),
    Column("Processes", "right", rank=3),
)


def cluster_table(table: ClusterTable) -> list[Block]:
    """The devices by host, each with the engines that see it; then who did not answer."""
    rows: list[list[Cell]] = []
    for host, engines in table.hosts.items():
        rows += _host(host, engines)
    blocks: list[Block] = [Grid(_COLUMNS, rows)] if rows else []
    blocks += _errors(table.silent)
    number, hosts = len(table), len(table.hosts)
    count = f"{plural(number, 'engine')} on {plural(hosts, 'host')}"
    if table.silent:
        count = f"{number - len(table.silent)} of {count}"
    blocks.append(Line.of(f"{count} ({table.source})", "dim"))
    if table.show_processes:
        blocks += _processes(table)
    return blocks


def _host(host: str, engines: Sequence[EngineDevices]) -> list[list[Cell]]:
    devices: dict[str, Device] = {}
    seen_by: dict[str, dict[str, list[int]]] = {}
    blind: dict[str, list[int]] = {}
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
            blind.setdefault(why, []).append(each.engine)
    rows = [
        _device(device, seen_by.get(key, {}))
        for key, device in sorted(devices.items(), key=lambda pair: pair[1].index)
    ]
    for why, of in blind.items():
        rows.append([Cell(DASH, "dim"), Cell(spans(of)), Cell(why, "dim"), *[Cell("")] * 3])
    first = Cell(host, "strong")
    return [[first if place == 0 else Cell(""), *row] for place, row in enumerate(rows)]


def _device(device: Device, engines: Mapping[str, Sequence[int]]) -> list[Cell]:
    sees = "; ".join(f"{spans(of)} as {name}" for name, of in sorted(engines.items()))
    if device.error is not None:
        gone = [Cell(device.name or DASH), Cell(device.error, "bad"), Cell(""), Cell("")]
        return [Cell(str(device.index), "strong"), Cell(sees or DASH), *gone]
    count = DASH if device.processes is None else str(len(device.processes))
    return [
        Cell(str(device.index), "strong"),
        Cell(sees, "good") if sees else Cell("nobody", "dim"),
        Cell(device.name or DASH),
        memory_cell(device),
        Cell(percent(device.utilization)),
        Cell(count, "" if count not in ("0", DASH) else "dim"),
    ]


_PROCESS_COLUMNS = (
    Column("Host"),
    Column("GPU", "right"),
    Column("PID", "right"),
    Column("Engine", "right"),
    Column("User", rank=2),
    Column("Memory", "right"),
    Column("Command", least=12),
)


def _processes(table: ClusterTable) -> list[Block]:
    found: list[tuple[str, int, str, Process]] = []
    for host, engines in table.hosts.items():
        of_pid = {each.pid: str(each.engine) for each in engines}
        listed: dict[tuple[int, int], Process] = {}
        for each in engines:
            for device in each.table or ():
                for process in device.processes or ():
                    listed.setdefault((device.index, process.pid), process)
        found += [
            (host, index, of_pid.get(pid, DASH), process)
            for (index, pid), process in sorted(listed.items(), key=lambda pair: pair[0])
        ]
    if not found:
        return [Line.of("No process uses a GPU, as far as NVML lists them.", "dim")]
    shown, rest = most_memory(found)
    rows = [
        [
            Cell(host),
            Cell(str(index)),
            Cell(str(process.pid)),
            Cell(engine),
            Cell(process.user or DASH),
            Cell(bytes_(process.memory)),
            Cell(short_command(process)),
        ]
        for host, index, engine, process in shown
    ]
    return [Grid(_PROCESS_COLUMNS, rows), *rest]


# --- a choice ----------------------------------------------------------------------------------


def cluster_selection(result: ClusterSelection) -> list[Block]:
    """What each engine now sees; of many engines, what they have in common."""
    columns = (
        Column("Engine", "right"),
        Column("Host", rank=1),
        Column("Status"),
        Column("Sees"),
    )
    groups: dict[tuple[str, str, str], list[int]] = {}
    for each in result:
        if each.selection is not None:
            what = (each.host or DASH, each.selection.status, _sees(each))
            groups.setdefault(what, []).append(each.engine)
    rows = [
        [Cell(spans(of)), Cell(host), Cell(status, STATUS_STYLES[status]), Cell(sees)]
        for (host, status, sees), of in groups.items()
    ]
    blocks: list[Block] = [Grid(columns, rows)] if rows else []
    blocks += _errors(result)
    return [*blocks, *(Line.of(note, "dim") for note in result.notes)]


def _sees(each: EngineSelection) -> str:
    assert each.selection is not None
    devices = each.selection.devices
    if not devices:
        return "no GPU"
    shown = ", ".join(
        f"cuda:{'?' if d.ordinal is None else d.ordinal} = GPU {d.index}" for d in devices[:4]
    )
    return shown if len(devices) <= 4 else f"{shown}, … ({len(devices)} GPUs)"


# --- times -------------------------------------------------------------------------------------


def cluster_timing(result: ClusterTiming) -> list[Block]:
    """Median, least and most over the engines, then the engines, the slowest named."""
    blocks: list[Block] = []
    if result.seconds:
        columns = (
            Column("over the engines"),
            Column("median", "right"),
            Column("min", "right"),
            Column("max", "right"),
        )
        rows = []
        for name, sample in (("GPU", result.gpu), ("Wall", result.wall), ("CPU", result.cpu)):
            values = (None,) * 3 if sample is None else (sample.median, sample.best, sample.worst)
            whole = (result.per_engine[engine] for engine in result.seconds)
            at_most = name == "GPU" and any(timing.gpu_at_most for timing in whole)
            bound = "≤ " if at_most and sample is not None else ""
            rows.append([Cell(name), *(Cell(f"{bound}{seconds(value)}") for value in values)])
        blocks.append(Grid(columns, rows))
    if result.per_engine:
        blocks.append(_each_timing(result))
        blocks += _about_times(result)
        blocks += _each_kernels(result)
    return [*blocks, *_errors(result.engines), *(Line.of(n, "dim") for n in result.notes)]


def _each_timing(result: ClusterTiming) -> Grid:
    ranked = any(each.rank is not None for each in result.engines)
    columns = [Column("Engine", "right"), Column("Host", rank=1)]
    columns += [Column("Rank", "right")] if ranked else []
    columns += [Column("GPU", "right"), Column("Wall", "right"), Column("CPU", "right", rank=2)]
    columns += [Column("limited by", rank=3)]
    timed = [each for each in result.engines if each.timing is not None]
    straggler = result.straggler
    rows = []
    taken = result.seconds
    for each in _telling(timed, lambda one: taken.get(one.engine, 0.0)):
        timing = each.timing
        assert timing is not None
        gpu = seconds(None if timing.gpu is None else timing.gpu.median)
        if timing.gpu is not None and timing.gpu_at_most:
            gpu = f"≤ {gpu}"
        style: Style = "warn" if each is straggler else "bad" if timing.partial else ""
        partly = " (partial)" if timing.partial else ""
        row = [Cell(f"{each.engine}{partly}", style), Cell(each.host or DASH)]
        row += [Cell(DASH if each.rank is None else str(each.rank))] if ranked else []
        row += [Cell(gpu, style), Cell(seconds(timing.wall.median), style)]
        row += [
            Cell(cpu_seconds(timing.cpu.median, timing.loops)),
            Cell(_bound(timing.bound), "dim"),
        ]
        rows.append(row)
    return Grid(columns, rows)


def _each_kernels(result: ClusterTiming) -> list[Block]:
    """The kernels of each engine; of many, those of the slowest."""
    found, taken = result.kernels, result.seconds
    blocks: list[Block] = []
    if len(found) > _KERNELS:
        slowest = max(found, key=lambda engine: taken.get(engine, 0.0))
        found = {slowest: found[slowest]}
        blocks.append(Line.of("the kernels of the slowest engine; the result has them all", "dim"))
    for engine, report in found.items():
        blocks += [Line.of(f"engine {engine}", "strong"), *kernels(report)]
    return blocks


def _bound(bound: str | None) -> str:
    return DASH if bound is None else {"gpu": "the GPU", "host": "the host"}[bound]


_Each = TypeVar("_Each", bound=EngineResult)


def _telling(engines: Sequence[_Each], weight: Callable[[_Each], float]) -> list[_Each]:
    """All engines, or, of many, the heaviest, in the order of their ids."""
    if len(engines) <= _ROWS:
        return list(engines)
    heaviest = sorted(engines, key=weight, reverse=True)[: _ROWS // 2]
    return sorted(heaviest, key=lambda each: each.engine)


def _about_times(result: ClusterTiming) -> list[Block]:
    blocks: list[Block] = []
    number, timed = len(result.per_engine), len(result.seconds)
    if number > _ROWS:
        blocks.append(Line.of(f"the {_ROWS // 2} slowest of {number} engines", "dim"))
    slowest, straggler = result.slowest, result.straggler
    if slowest is not None and timed > 1:
        where = f"engine {slowest.engine} on {slowest.host}"
        if straggler is slowest:
            times = result.seconds[slowest.engine] / statistics.median(result.seconds.values())
            blocks.append(Line.of(f"straggler: {where} took {times:.1f} × the median", "warn"))
        else:
            blocks.append(Line.of(f"slowest: {where}", "dim"))
    if result.host_bound:
        text = f"host-bound, the GPU waits for work to be launched: {_engines(result.host_bound)}"
        blocks.append(Line.of(text, "warn"))
    if timed > 1:
        together = (
            "the ranks started together, behind a barrier"
            if result.barrier
            else (
                "the engines started when the cell reached them; ranks of a process group "
                "(%gpu dist init) start together"
            )
        )
        blocks.append(Line.of(together, "dim"))
    return blocks


# --- memory ------------------------------------------------------------------------------------


def cluster_memory(result: ClusterMemory) -> list[Block]:
    """Each engine's changes and peaks, the highest peak named."""
    ranked = any(each.rank is not None for each in result.engines)
    columns = [Column("Engine", "right"), Column("Host", rank=1)]
    columns += [Column("Rank", "right")] if ranked else []
    columns += [Column("Device"), Column("allocated", "right"), Column("reserved", "right")]
    columns += [Column("peak", "right")]
    measured = [each for each in result.engines if each.delta is not None]
    highest, rows = result.highest, list[list[Cell]]()
    for each in _telling(measured, lambda one: one.peak or 0):
        assert each.delta is not None
        start = [Cell(str(each.engine)), Cell(each.host or DASH)]
        start += [Cell(DASH if each.rank is None else str(each.rank))] if ranked else []
        for ordinal, device in each.delta.devices.items():
            style: Style = "strong" if each is highest and device.peak == each.peak else ""
            rows.append(
                [
                    *start,
                    Cell(f"cuda:{ordinal}"),
                    Cell(bytes_(device.allocated, sign=True)),
                    Cell(bytes_(device.reserved, sign=True)),
                    Cell(bytes_(device.peak, sign=True), style),
                ]
            )
        if not each.delta.devices:
            why = each.delta.error or "no GPU memory in use"
            rows.append([*start, Cell(why, "dim"), *[Cell(DASH, "dim")] * 3])
    blocks: list[Block] = [Grid(columns, rows)] if rows else []
    if len(measured) > _ROWS:
        text = f"the {_ROWS // 2} highest of {len(measured)} engines"
        blocks.append(Line.of(text, "dim"))
    if highest is not None and len({*result.peak.values()}) > 1:
        median = statistics.median_low(result.peak.values())
        where = f"engine {highest.engine} on {highest.host}"
        text = f"highest peak: {bytes_(highest.peak, sign=True)} at {where}"
        blocks.append(Line.of(f"{text}; median {bytes_(median, sign=True)}", "dim"))
    return [*blocks, *_errors(result.engines), *(Line.of(n, "dim") for n in result.notes)]


# --- the process group -------------------------------------------------------------------------


def process_group(result: ProcessGroup) -> list[Block]:
    """The ranks, or that there are none."""
    blocks: list[Block] = []
    if result.ranks:
        count = plural(result.world_size, "rank")
        in_order = [engine for engine, _ in sorted(result.ranks.items(), key=lambda pair: pair[1])]
        same = all(engine == rank for engine, rank in result.ranks.items())
        who = "rank = engine id" if same else f"ranks 0 to {len(in_order) - 1} are {in_order}"
        blocks.append(
            Line(
                (
                    Cell(f"process group: {count}", "good"),
                    Cell(f", backend {result.backend}"),
                    Cell(f"  ({who}{f'; met at {result.master}' if result.master else ''})", "dim"),
                )
            )
        )
    elif not result.failed and not result.notes:
        blocks.append(Line.of("no process group: %gpu dist init makes one of the engines", "dim"))
    reasons: dict[str, list[int]] = {}
    for engine, reason in result.failed.items():
        reasons.setdefault(reason, []).append(engine)
    blocks += [Line.of(f"{_engines(of)}: {reason}", "bad") for reason, of in reasons.items()]
    return [*blocks, *(Line.of(note, "dim") for note in result.notes)]
