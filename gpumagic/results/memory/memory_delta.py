"""The change of GPU memory by a cell: ``%%gpumem``; and its peaks compared with stored ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from typing import Any

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
from gpumagic.render.units import DASH, bytes_, share, spans
from gpumagic.results.base import Result
from gpumagic.results.conditions import Conditions
from gpumagic.results.storable import StorableResult
from gpumagic.wording import grouped, plural


@dataclass(frozen=True)
class DeviceMemoryDelta:
    """The change of one device's memory by a cell, by the allocator's counters. Bytes, exact."""

    #: Change of the bytes held by live tensors.
    allocated: int
    #: Change of the bytes reserved by the allocator.
    reserved: int
    #: Highest ``allocated`` during the cell, above its value at the start.
    peak: int
    #: Bytes held by live tensors at the end.
    allocated_now: int = 0
    #: Bytes reserved by the allocator at the end.
    reserved_now: int = 0
    #: Allocations that failed (out of memory) during the cell.
    ooms: int = 0
    #: Allocations that succeeded only after the cache was emptied.
    retries: int = 0


@dataclass(frozen=True, repr=False)
class MemoryDelta(StorableResult):
    """The change of GPU memory by a cell: one `DeviceMemoryDelta` for each CUDA ordinal in use."""

    _index = ("device",)
    _columns = tuple(each.name for each in fields(DeviceMemoryDelta))

    devices: Mapping[int, DeviceMemoryDelta] = field(default_factory=dict)
    #: True if the cell raised or was interrupted.
    partial: bool = False
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none; one line.
    error: str | None = None
    #: The machine and the versions; None for a result without a measurement.
    conditions: Conditions | None = None

    @property
    def says_something(self) -> bool:
        """Whether there is a change, or a reason for no figures, or a note."""
        return bool(self.error or self.notes or only_changed(self.devices))

    def _records(self) -> Iterator[Mapping[str, Any]]:
        return ({"device": ordinal, **asdict(of)} for ordinal, of in self.devices.items())

    def _headline(self) -> Line | None:
        return super()._headline() if self.error else change_line(only_changed(self.devices))

    def _blocks(self) -> Iterator[Block]:
        changed = only_changed(self.devices)
        if self.error is not None:
            yield Line.of(f"GPU memory: not measured, {self.error}", "dim")
        elif not changed:
            yield Line.of("GPU memory: no change")
        yield Grid.of(
            changed.items(),
            Column("Device", lambda of: Styled(f"cuda:{of[0]}", "strong")),
            Figures("Allocated", lambda of: bytes_(of[1].allocated, sign=True)),
            Figures("Peak above start", lambda of: bytes_(of[1].peak, sign=True)),
            Figures("Reserved", lambda of: bytes_(of[1].reserved, sign=True), rank=1),
            Figures("Allocated now", lambda of: Styled(bytes_(of[1].allocated_now), "dim"), rank=2),
            Figures("Reserved now", lambda of: Styled(bytes_(of[1].reserved_now), "dim"), rank=3),
        )
        for ordinal, change in changed.items():
            if change.ooms:
                failed = f"out of memory, {plural(change.ooms, 'allocation')} failed"
                yield Line.of(f"cuda:{ordinal}: {failed}", "bad")
            if change.retries:
                again = (
                    f"{plural(change.retries, 'allocation')} tried again after emptying the cache"
                )
                yield Line.of(f"cuda:{ordinal}: {again}", "warn")


def change_line(changed: Mapping[int, DeviceMemoryDelta]) -> Line:
    """Return one line of what has changed: ``GPU memory: cuda:0 +2.00 GiB, peak +3.00 GiB, …``."""

    def text(delta: DeviceMemoryDelta) -> str:
        if delta.allocated or delta.peak or not delta.reserved:
            change = f"{bytes_(delta.allocated, sign=True)}, peak {bytes_(delta.peak, sign=True)}"
            return f"{change}, now {bytes_(delta.allocated_now)}"
        return f"reserved {bytes_(delta.reserved, sign=True)}, now {bytes_(delta.reserved_now)}"

    groups = grouped((text(delta), ordinal) for ordinal, delta in changed.items())
    said = (
        f"cuda:{spans(of)}{' each' if len(of) > 1 else ''} {text}" for text, of in groups.items()
    )
    parts = [Styled(f"GPU memory: {' · '.join(said) or 'no change'}", "dim")]
    if failed := [ordinal for ordinal, delta in changed.items() if delta.ooms]:
        parts.append(Styled(f" (out of memory: cuda:{spans(failed)})", "bad"))
    return Line(parts)


def only_changed(devices: Mapping[int, DeviceMemoryDelta]) -> dict[int, DeviceMemoryDelta]:
    """Return those of the devices whose memory changed or peaked."""
    has_changed = attrgetter("allocated", "reserved", "peak", "ooms", "retries")
    return {ordinal: delta for ordinal, delta in devices.items() if any(has_changed(delta))}


@dataclass(frozen=True, repr=False)
class MemoryComparison(Result):
    """Peaks above the start in bytes, by CUDA ordinal: now and stored."""

    peaks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _blocks(self) -> Iterator[Block]:
        yield Grid.of(
            ((ordinal, *peaks) for ordinal, peaks in self.peaks.items()),
            Column("Device", lambda of: f"cuda:{of[0]}"),
            Figures("Peak", lambda of: bytes_(of[1])),
            Figures("Stored", lambda of: bytes_(of[2])),
            Figures("Change", lambda of: share(of[1] / of[2] - 1, 1, sign=True) if of[2] else DASH),
        )
