"""The change of GPU memory by a cell on the engines of a cluster."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, Style, dim_lines
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result
from gpumagic.results.cluster_engines import ROWS, EngineResult, failure_lines, failures, highest
from gpumagic.results.memory import MemoryDelta
from gpumagic.system.text import plural


@dataclass(frozen=True)
class EngineMemory(EngineResult):
    """The change of one engine's GPU memory by a cell."""

    delta: MemoryDelta | None = None

    @property
    def peak(self) -> int | None:
        """The highest peak among the engine's devices in bytes; None without a device."""
        devices = () if self.delta is None else self.delta.devices.values()
        return max((device.peak for device in devices), default=None)


@dataclass(frozen=True)
class ClusterMemory(Result):
    """The change of GPU memory by a cell on every engine. Bytes, exact."""

    engines: tuple[EngineMemory, ...] = ()
    #: From sending the cell until the last engine's reply, by the client's clock; seconds.
    elapsed: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def per_engine(self) -> dict[int, MemoryDelta]:
        """The changes, by engine id."""
        return {each.engine: each.delta for each in self.engines if each.delta is not None}

    @property
    def failed(self) -> dict[int, str]:
        """Why there are no figures, or only partial ones, by engine id."""
        return failures(self.engines)

    @property
    def peak(self) -> Mapping[int, int]:
        """The highest peak among each engine's devices in bytes, by engine id."""
        return {each.engine: each.peak for each in self.engines if each.peak is not None}

    @property
    def highest(self) -> EngineMemory | None:
        """The engine with the highest peak; None where no engine used a GPU."""
        used = [each for each in self.engines if each.peak is not None]
        return max(used, key=lambda each: each.peak or 0, default=None)

    def _blocks(self) -> list[Block]:
        ranked = any(each.rank is not None for each in self.engines)
        columns = [Column("Engine", "right"), Column("Host", rank=1)]
        columns += [Column("Rank", "right")] if ranked else []
        columns += [Column("Device"), Column("Allocated", "right"), Column("Reserved", "right")]
        columns += [Column("Peak above start", "right")]
        measured = [each for each in self.engines if each.delta is not None]
        top, rows = self.highest, list[list[Cell]]()
        for each in highest(measured, lambda one: one.peak or 0):
            assert each.delta is not None
            start = [Cell(str(each.engine)), Cell(each.host or DASH)]
            start += [Cell(DASH if each.rank is None else str(each.rank))] if ranked else []
            for ordinal, device in each.delta.devices.items():
                style: Style = "strong" if each is top and device.peak == each.peak else ""
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
        if len(measured) > ROWS:
            text = f"the {ROWS // 2} highest of {len(measured)} engines"
            blocks.append(Line.of(text, "dim"))
        if top is not None and len({*self.peak.values()}) > 1:
            median = statistics.median_low(self.peak.values())
            where = f"engine {top.engine} on {top.host}"
            text = f"highest peak: {bytes_(top.peak, sign=True)} at {where}"
            blocks.append(Line.of(f"{text}; median {bytes_(median, sign=True)}", "dim"))
        return [*blocks, *failure_lines(self.failed), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        return f"<ClusterMemory: {plural(len(self.engines), 'engine')}>"
