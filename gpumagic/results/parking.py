"""GPU memory that was parked in host memory, or restored from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, dim_lines
from gpumagic.render.units import bytes_, seconds
from gpumagic.results.base import Result
from gpumagic.system.text import listed, noun

#: The most names of what stays that are shown for one reason.
_NAMES = 4


@dataclass(frozen=True)
class StayingMemory:
    """Allocated memory of a device that cannot be parked, and the reason."""

    reason: str
    size: int
    #: Of the allocator's blocks.
    number: int
    #: The variables that lead to it, or the lines that allocated it; the largest first.
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceParking:
    """The parking of one device's memory. Bytes.

    ``parked`` and the sizes in ``stays`` add up to ``allocated_before``.
    """

    #: Allocated before, without cuBLAS's workspaces.
    allocated_before: int
    #: The part of it that was parked, as the allocator counts it.
    parked: int
    stays: tuple[StayingMemory, ...] = ()
    #: cuBLAS's workspaces, which were freed.
    workspaces: int = 0
    reserved_before: int = 0
    allocated_after: int = 0
    reserved_after: int = 0
    #: Reserved, and free: the rest of the segments in which something stays.
    unused_after: int = 0
    #: Held by this process outside torch's allocator (CUDA context, libraries); None if unknown.
    outside: int | None = None


@dataclass(frozen=True)
class ParkedMemory(Result):
    """The result of ``%gpumem park``, by CUDA ordinal."""

    devices: Mapping[int, DeviceParking] = field(default_factory=dict)
    #: Bytes and storages that were copied to the host.
    copied: int = 0
    storages: int = 0
    #: For copying alone, and for finding what can be parked before it.
    seconds: float = 0.0
    search_seconds: float = 0.0
    #: Whether the copies are in pinned host memory.
    pinned: bool = False
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        if not self.storages:
            return [Line.of("There is nothing to park."), *self._stays(), *dim_lines(self.notes)]
        columns = [Column("Device"), Column("Parked", "right"), Column("Stays", "right")]
        columns += [Column("Reserved", "right"), Column("Non-PyTorch", "right", rank=1)]
        rows = [
            [
                Cell(f"cuda:{ordinal}"),
                Cell(bytes_(device.parked), "good"),
                Cell(bytes_(device.allocated_after), "warn" if device.stays else ""),
                Cell(f"{bytes_(device.reserved_before)} → {bytes_(device.reserved_after)}"),
                Cell(bytes_(device.outside)),
            ]
            for ordinal, device in self.devices.items()
        ]
        kind = "pinned" if self.pinned else "pageable"
        text = (
            f"{bytes_(self.copied)} in {kind} host memory, copied in "
            f"{_speed(self.copied, self.seconds)}, and found in {seconds(self.search_seconds)}; "
            "they come back before a cell that may use them, and by %gpumem unpark"
        )
        return [Grid(columns, rows), *self._stays(), *dim_lines((text, *self.notes))]

    def _stays(self) -> list[Block]:
        lines: list[Block] = []
        for ordinal, device in self.devices.items():
            for each in device.stays:
                names = f" ({listed(each.names, _NAMES)})" if each.names else ""
                text = f"cuda:{ordinal}: {bytes_(each.size)} stay{names}: {each.reason}"
                lines.append(Line.of(text, "warn"))
            if device.unused_after:
                rest = f"{bytes_(device.unused_after)} stay reserved: the rest of the segments"
                lines += dim_lines((f"cuda:{ordinal}: {rest} in which that is",))
        return lines

    def __repr__(self) -> str:
        return f"<ParkedMemory: {self.copied} B>"


@dataclass(frozen=True)
class Unparked(Result):
    """The memory that was restored from the host."""

    #: Bytes by CUDA ordinal.
    devices: Mapping[int, int] = field(default_factory=dict)
    storages: int = 0
    #: For copying alone.
    seconds: float = 0.0
    #: Seconds since it was parked.
    parked_for: float = 0.0

    def _blocks(self) -> list[Block]:
        if not self.storages:
            return [Line.of("Nothing is parked.", "dim")]
        sizes = ", ".join(f"{bytes_(n)} to cuda:{ordinal}" for ordinal, n in self.devices.items())
        speed = _speed(sum(self.devices.values()), self.seconds)
        back = f"Brought back {sizes} in {speed}"
        # Of a long time the milliseconds are of no interest; of a short one they are all there is.
        passed = round(self.parked_for, 1) if self.parked_for >= 1 else self.parked_for
        return [Line.of(f"{back}, parked for {seconds(passed)}.", "dim")]

    def __repr__(self) -> str:
        return f"<Unparked: {self.storages} {noun(self.storages, 'storage')}>"


def _speed(size: int, took: float) -> str:
    """Return how long a copy took, and bytes per second where that is known."""
    rate = f" ({bytes_(round(size / took))}/s)" if took and size else ""
    return f"{seconds(took)}{rate}"
