"""The outcome of selecting devices on the engines of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, dim_lines, few
from gpumagic.render.units import spans
from gpumagic.results.base import Series
from gpumagic.results.cluster_engines import EngineResult, failure_lines, failures
from gpumagic.results.devices import Device
from gpumagic.results.selection import STATUS_STYLES, Selection
from gpumagic.system.text import plural


@dataclass(frozen=True)
class EngineSelection(EngineResult):
    """The outcome of selecting devices on one engine."""

    selection: Selection | None = None


@dataclass(frozen=True)
class ClusterSelection(Series[EngineSelection]):
    """The outcome of selecting devices on every engine, as verified there."""

    items_in: ClassVar[str] = "engines"

    #: The text that the user typed.
    requested: str
    engines: tuple[EngineSelection, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def too_late(self) -> tuple[int, ...]:
        """The engines on which the choice did not take effect, because CUDA was initialised."""
        return tuple(
            each.engine
            for each in self.engines
            if each.selection is not None and each.selection.status == "too-late"
        )

    @property
    def targets(self) -> tuple[int, ...]:
        """The engines that now see a device."""
        return tuple(
            each.engine for each in self.engines if each.selection and each.selection.devices
        )

    def _blocks(self) -> list[Block]:
        columns = (
            Column("Engine", "right"),
            Column("Host", rank=1),
            Column("Status"),
            Column("Sees"),
        )
        groups: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
        for each in self:
            if each.selection is not None:
                outcome = (each.host or DASH, each.selection.status, _names(each.selection.devices))
                groups.setdefault(outcome, []).append(each.engine)
        rows = [
            [Cell(spans(of)), Cell(host), Cell(status, STATUS_STYLES[status]), _sees(devices)]
            for (host, status, devices), of in groups.items()
        ]
        blocks: list[Block] = [Grid(columns, rows)] if rows else []
        return [*blocks, *failure_lines(failures(self)), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        return f"<ClusterSelection {self.requested!r}: {plural(len(self), 'engine')}>"


def _names(devices: Sequence[Device]) -> tuple[str, ...]:
    return tuple(f"cuda:{'?' if d.ordinal is None else d.ordinal} = GPU {d.index}" for d in devices)


def _sees(devices: Sequence[str]) -> Cell:
    return few(devices, 4) if devices else Cell("no GPU")
