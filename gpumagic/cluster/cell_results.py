"""What a cell did on every engine: its times, and the change of GPU memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from gpumagic.cluster.results import ENGINE, ClusterResult, EngineResult, said
from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
from gpumagic.render.units import DASH, at_most, bytes_, cpu_seconds
from gpumagic.results.timing.sample import Sample


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
            *ENGINE,
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
        yield from said(
            (each.value.error or "no GPU memory in use", each.engine)
            for each in self._measured()
            if not each.value.devices
        )
        yield from self._failures()
