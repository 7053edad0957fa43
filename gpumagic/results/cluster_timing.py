"""The times of a cell on the engines of a cluster."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, Style, dim_lines
from gpumagic.render.units import cpu_seconds, seconds
from gpumagic.results.base import Result, data_frame
from gpumagic.results.cluster_engines import (
    ROWS,
    EngineResult,
    engine_ids,
    failure_lines,
    failures,
    highest,
)
from gpumagic.results.kernels import KernelReport
from gpumagic.results.sample import Sample
from gpumagic.results.timing import CudaTiming
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

#: How many times as long as the median a straggler takes at least.
_STRAGGLER = 1.2
#: The most engines whose kernels are shown; of more engines, only the slowest one's are.
_KERNELS = 4


@dataclass(frozen=True)
class EngineTiming(EngineResult):
    """The times of a cell on one engine."""

    timing: CudaTiming | None = None


@dataclass(frozen=True)
class ClusterTiming(Result):
    """The times of a cell on every engine, and statistics over the engines. Seconds.

    ``gpu``, ``wall`` and ``cpu`` are `Sample`s with one value an engine: its median. They are None
    where no engine has such a time. Engines whose run ended early, by an exception or an interrupt,
    are included in none of them and not compared.
    """

    engines: tuple[EngineTiming, ...] = ()
    #: From sending the cell until the last engine's reply, by the client's clock.
    elapsed: float | None = None
    #: Whether the ranks passed a barrier before the clocks were started.
    barrier: bool = False
    notes: tuple[str, ...] = ()

    @property
    def gpu(self) -> Sample | None:
        return self._over(lambda timing: timing.gpu)

    @property
    def wall(self) -> Sample | None:
        return self._over(lambda timing: timing.wall)

    @property
    def cpu(self) -> Sample | None:
        return self._over(lambda timing: timing.cpu)

    def _over(self, quantity: Callable[[CudaTiming], Sample | None]) -> Sample | None:
        samples = [quantity(timing) for timing in self._complete.values()]
        values = tuple(sample.median for sample in samples if sample is not None)
        return Sample(values) if values else None

    @property
    def per_engine(self) -> dict[int, CudaTiming]:
        """The timings, by engine id; ``partial`` where the run ended early."""
        return {each.engine: each.timing for each in self.engines if each.timing is not None}

    @property
    def _complete(self) -> dict[int, CudaTiming]:
        return {i: timing for i, timing in self.per_engine.items() if not timing.partial}

    @property
    def kernels(self) -> dict[int, KernelReport]:
        """The kernels, by engine id; empty without ``--kernels``."""
        found = {engine: timing.kernels for engine, timing in self.per_engine.items()}
        return {engine: report for engine, report in found.items() if report is not None}

    @property
    def failed(self) -> dict[int, str]:
        """Why there is no timing, or only a partial one, by engine id."""
        return failures(self.engines)

    @property
    def seconds(self) -> dict[int, float]:
        """The compared times, by engine id: median GPU times if all have one, else wall times."""
        timings = self._complete
        on_gpu = all(timing.gpu is not None for timing in timings.values())
        return {
            engine: (timing.gpu if on_gpu and timing.gpu else timing.wall).median
            for engine, timing in timings.items()
        }

    @property
    def slowest(self) -> EngineTiming | None:
        """The engine with the longest time; None where no engine has a complete timing."""
        seconds = self.seconds
        timed = [each for each in self.engines if each.engine in seconds]
        return max(timed, key=lambda each: seconds[each.engine], default=None)

    @property
    def straggler(self) -> EngineTiming | None:
        """The slowest, if it took over 1.2 times as long as the median engine."""
        slowest, seconds = self.slowest, self.seconds
        if slowest is None or len(seconds) < 2:
            return None
        median = statistics.median(seconds.values())
        return slowest if seconds[slowest.engine] > _STRAGGLER * median else None

    @property
    def host_bound(self) -> tuple[int, ...]:
        """The engines whose GPU waited for their host to launch work."""
        return tuple(i for i, timing in self._complete.items() if timing.bound == "host")

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = []
        if self.seconds:
            columns = (
                Column("Over the engines"),
                Column("Median", "right"),
                Column("Min", "right"),
                Column("Max", "right"),
            )
            rows = []
            for name, sample in (("GPU", self.gpu), ("Wall", self.wall), ("CPU", self.cpu)):
                if sample is None:
                    rows.append([Cell(name), *[Cell(DASH)] * 3])
                    continue
                at_most = any(timing.gpu_at_most for timing in self._complete.values())
                bound = "≤ " if name == "GPU" and at_most else ""
                values = (sample.median, sample.best, sample.worst)
                rows.append([Cell(name), *(Cell(f"{bound}{seconds(value)}") for value in values)])
            blocks.append(Grid(columns, rows))
        if self.per_engine:
            blocks.append(_each_timing(self))
            blocks += _summary(self)
            blocks += _each_kernels(self)
        return [*blocks, *failure_lines(self.failed), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        best = self.gpu or self.wall
        figure = "-" if best is None else f"median {best.median:.6g} s"
        return f"<ClusterTiming: {plural(len(self.engines), 'engine')}, {figure}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row an engine: median seconds per loop (needs pandas)."""
        rows = []
        for each in self.engines:
            row: dict[str, Any] = {"engine": each.engine, "host": each.host, "rank": each.rank}
            for name in ("gpu", "wall", "cpu", "host"):
                sample = getattr(each.timing, name, None)
                row[f"{name}_time"] = None if sample is None else sample.median
            row["bound"] = getattr(each.timing, "bound", None)
            rows.append({**row, "error": each.error})
        return data_frame(rows, index="engine")


def _each_timing(result: ClusterTiming) -> Grid:
    ranked = any(each.rank is not None for each in result.engines)
    columns = [Column("Engine", "right"), Column("Host", rank=1)]
    columns += [Column("Rank", "right")] if ranked else []
    columns += [Column("GPU", "right"), Column("Wall", "right"), Column("CPU", "right", rank=2)]
    columns += [Column("Limited by", rank=3)]
    timed = [each for each in result.engines if each.timing is not None]
    straggler = result.straggler
    rows = []
    times = result.seconds
    for each in highest(timed, lambda one: times.get(one.engine, 0.0)):
        timing = each.timing
        assert timing is not None
        gpu = seconds(None if timing.gpu is None else timing.gpu.median)
        if timing.gpu is not None and timing.gpu_at_most:
            gpu = f"≤ {gpu}"
        style: Style = "warn" if each is straggler else "bad" if timing.partial else ""
        engine = f"{'! ' * (each is straggler)}{each.engine}"
        engine = f"✗ {engine} (partial)" if timing.partial else engine
        row = [Cell(engine, style), Cell(each.host or DASH)]
        row += [Cell(DASH if each.rank is None else str(each.rank))] if ranked else []
        row += [Cell(gpu, style), Cell(seconds(timing.wall.median), style)]
        row += [
            Cell(cpu_seconds(timing.cpu.median, timing.loops)),
            Cell(_bound(timing.bound), "dim"),
        ]
        rows.append(row)
    return Grid(columns, rows)


def _each_kernels(result: ClusterTiming) -> list[Block]:
    """Return the kernels of each engine; of many engines, those of the slowest."""
    found, times = result.kernels, result.seconds
    blocks: list[Block] = []
    if len(found) > _KERNELS:
        slowest = max(found, key=lambda engine: times.get(engine, 0.0))
        found = {slowest: found[slowest]}
        blocks.append(
            Line.of("kernels of the slowest engine; the result object has those of all", "dim")
        )
    for engine, report in found.items():
        blocks += [Line.of(f"engine {engine}", "strong"), *report._blocks()]
    return blocks


def _bound(bound: str | None) -> str:
    return DASH if bound is None else {"gpu": "the GPU", "host": "the host"}[bound]


def _summary(result: ClusterTiming) -> list[Block]:
    """Return lines on the slowest engine, host-bound engines and how the engines started."""
    blocks: list[Block] = []
    number, timed = len(result.per_engine), len(result.seconds)
    if number > ROWS:
        blocks.append(Line.of(f"the {ROWS // 2} slowest of {number} engines", "dim"))
    slowest, straggler = result.slowest, result.straggler
    if slowest is not None and timed > 1:
        where = f"engine {slowest.engine} on {slowest.host}"
        if straggler is slowest:
            times = result.seconds[slowest.engine] / statistics.median(result.seconds.values())
            more = f"{times:.1f}\N{MULTIPLICATION SIGN} the median"
            blocks.append(Line.of(f"straggler: {where} took {more}", "warn"))
        else:
            blocks.append(Line.of(f"slowest: {where}", "dim"))
    if result.host_bound:
        text = f"host-bound, the GPU waits for work to be launched: {engine_ids(result.host_bound)}"
        blocks.append(Line.of(text, "warn"))
    if timed > 1:
        start = (
            "the ranks started together, after a barrier"
            if result.barrier
            else (
                "the engines started when the cell reached them; ranks of a process group "
                "(%gpu dist init) start together"
            )
        )
        blocks.append(Line.of(start, "dim"))
    return blocks
