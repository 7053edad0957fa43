"""What a cell did on the engines of a cluster: its times and its memory."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, Style
from gpumagic.render.units import bytes_, cpu_seconds, seconds
from gpumagic.results.base import data_frame
from gpumagic.results.cluster import ROWS, ClusterResult, EngineResult, engine_ids, highest
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.timing import CudaTiming, Sample

if TYPE_CHECKING:
    import pandas

#: How many times as long as the median a straggler takes at least.
_STRAGGLER = 1.2


@dataclass(frozen=True, repr=False)
class ClusterTiming(ClusterResult):
    """The times of a cell on every engine (`CudaTiming`), and statistics over the engines.

    ``gpu``, ``wall`` and ``cpu`` are `Sample`s in seconds with one value an engine: its median.
    They are None where no engine has such a time.
    """

    #: Seconds from sending the cell until the last engine's reply, by the client's clock.
    elapsed: float | None = None

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
        """The compared times, by engine id: median GPU times if all have one, else wall times."""
        timings = self.per_engine
        quantity = "gpu" if all(each.gpu is not None for each in timings.values()) else "wall"
        return {engine: getattr(each, quantity).median for engine, each in timings.items()}

    @property
    def slowest(self) -> EngineResult | None:
        """The engine with the longest time; None where no engine has a timing."""
        times = self.seconds
        timed = [each for each in self.engines if each.engine in times]
        return max(timed, key=lambda each: times[each.engine], default=None)

    @property
    def straggler(self) -> EngineResult | None:
        """The slowest, if it took over 1.2 times as long as the median engine."""
        slowest, times = self.slowest, self.seconds
        if slowest is None or len(times) < 2:
            return None
        median = statistics.median(times.values())
        return slowest if times[slowest.engine] > _STRAGGLER * median else None

    def _blocks(self) -> list[Block]:
        if not self.per_engine:
            return self._failures()
        columns = (Column("Over the engines"), *(Column(n, "right") for n in _OVER))
        at_most = any(timing.gpu_at_most for timing in self.per_engine.values())
        rows = []
        for name, sample in (("GPU", self.gpu), ("Wall", self.wall), ("CPU", self.cpu)):
            bound = "≤ " if name == "GPU" and at_most else ""
            values = () if sample is None else (sample.median, sample.best, sample.worst)
            cells = [Cell(f"{bound}{seconds(value)}") for value in values] or [Cell(DASH)] * 3
            rows.append([Cell(name), *cells])
        blocks: list[Block] = [Grid(columns, rows), _each_timing(self), *_summary(self)]
        return [*blocks, *_kernels(self), *self._failures()]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row an engine: median seconds per loop (needs pandas)."""
        rows = []
        for each in self.engines:
            row: dict[str, Any] = {"engine": each.engine, "host": each.host}
            for name in ("gpu", "wall", "cpu"):
                sample = getattr(each.value, name, None)
                row[f"{name}_time"] = None if sample is None else sample.median
            row["bound"] = getattr(each.value, "bound", None)
            rows.append({**row, "error": each.error})
        return data_frame(rows, index="engine")


_OVER = ("Median", "Min", "Max")
_BOUND = {None: DASH, "gpu": "the GPU", "host": "the host"}


def _each_timing(result: ClusterTiming) -> Grid:
    columns = [
        *(Column("Engine", "right"), Column("Host", rank=1), Column("GPU", "right")),
        *(Column("Wall", "right"), Column("CPU", "right", rank=2), Column("Limited by", rank=3)),
    ]
    rows, times, straggler = [], result.seconds, result.straggler
    for each in highest(result.engines, lambda one: times.get(one.engine, 0.0)):
        timing: CudaTiming = each.value
        style: Style = "warn" if each is straggler else ""
        gpu = seconds(None if timing.gpu is None else timing.gpu.median)
        rows.append(
            [
                Cell(f"{'! ' * (each is straggler)}{each.engine}", style),
                Cell(each.host or DASH),
                Cell(f"≤ {gpu}" if timing.gpu is not None and timing.gpu_at_most else gpu, style),
                Cell(seconds(timing.wall.median), style),
                Cell(cpu_seconds(timing.cpu.median, timing.loops)),
                Cell(_BOUND[timing.bound], "dim"),
            ]
        )
    return Grid(columns, rows)


def _summary(result: ClusterTiming) -> list[Block]:
    """Return lines on the slowest engine and those whose GPU waits."""
    blocks: list[Block] = []
    number, slowest = len(result.per_engine), result.slowest
    if number > ROWS:
        blocks.append(Line.of(f"the {ROWS // 2} slowest of {number} engines", "dim"))
    if slowest is not None and number > 1:
        where = f"engine {slowest.engine} on {slowest.host}"
        if result.straggler is slowest:
            times = result.seconds[slowest.engine] / statistics.median(result.seconds.values())
            more = f"{times:.1f}\N{MULTIPLICATION SIGN} the median"
            blocks.append(Line.of(f"straggler: {where} took {more}", "warn"))
        else:
            blocks.append(Line.of(f"slowest: {where}", "dim"))
    waiting = [i for i, timing in result.per_engine.items() if timing.bound == "host"]
    if waiting:
        text = f"host-bound, the GPU waits for work to be launched: {engine_ids(waiting)}"
        blocks.append(Line.of(text, "warn"))
    return blocks


def _kernels(result: ClusterTiming) -> list[Block]:
    """Return the kernels of the slowest engine that has some (``--kernels``)."""
    times = result.seconds
    found = {i: each.kernels for i, each in result.per_engine.items() if each.kernels is not None}
    if not found:
        return []
    slowest = max(found, key=lambda engine: times[engine])
    title = f"kernels of engine {slowest}, the slowest; the result has those of all"
    return [Line.of(title, "dim"), *found[slowest]._blocks()]


@dataclass(frozen=True, repr=False)
class ClusterMemory(ClusterResult):
    """The change of GPU memory by a cell on every engine (`MemoryDelta`). Bytes, exact."""

    #: Seconds from sending the cell until the last engine's reply, by the client's clock.
    elapsed: float | None = None

    @property
    def peak(self) -> dict[int, int]:
        """The highest peak among each engine's devices in bytes, by engine id."""
        peaks = {
            engine: max((device.peak for device in delta.devices.values()), default=None)
            for engine, delta in self.per_engine.items()
        }
        return {engine: peak for engine, peak in peaks.items() if peak is not None}

    @property
    def highest(self) -> EngineResult | None:
        """The engine with the highest peak; None where no engine used a GPU."""
        peaks = self.peak
        used = [each for each in self.engines if each.engine in peaks]
        return max(used, key=lambda each: peaks[each.engine], default=None)

    def _blocks(self) -> list[Block]:
        columns = [
            *(Column("Engine", "right"), Column("Host", rank=1), Column("Device")),
            *(Column("Allocated", "right"), Column("Reserved", "right")),
            Column("Peak above start", "right"),
        ]
        peaks, top, rows = self.peak, self.highest, list[list[Cell]]()
        for each in highest(self.engines, lambda one: peaks.get(one.engine, 0)):
            delta: MemoryDelta = each.value
            start = [Cell(str(each.engine)), Cell(each.host or DASH)]
            for ordinal, device in delta.devices.items():
                style: Style = "strong" if each is top and device.peak == peaks[each.engine] else ""
                figures = [bytes_(device.allocated, sign=True), bytes_(device.reserved, sign=True)]
                peak = Cell(bytes_(device.peak, sign=True), style)
                rows.append([*start, Cell(f"cuda:{ordinal}"), *map(Cell, figures), peak])
            if not delta.devices:
                why = delta.error or "no GPU memory in use"
                rows.append([*start, Cell(why, "dim"), *[Cell(DASH, "dim")] * 3])
        blocks: list[Block] = [Grid(columns, rows)] if rows else []
        if len(self.per_engine) > ROWS:
            text = f"the {ROWS // 2} highest of {len(self.per_engine)} engines"
            blocks.append(Line.of(text, "dim"))
        if top is not None and len({*peaks.values()}) > 1:
            median = bytes_(statistics.median_low(peaks.values()), sign=True)
            text = f"highest peak: {bytes_(peaks[top.engine], sign=True)} at engine {top.engine}"
            blocks.append(Line.of(f"{text} on {top.host}; median {median}", "dim"))
        return [*blocks, *self._failures()]
