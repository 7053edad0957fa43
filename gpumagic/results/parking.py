"""GPU memory that was parked in host memory, or brought back from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, dim_lines
from gpumagic.render.units import bytes_, seconds
from gpumagic.results.base import Result
from gpumagic.system.text import noun


@dataclass(frozen=True)
class DeviceParking:
    """The parking of one device's memory. Bytes."""

    #: As the allocator counts it.
    parked: int
    #: Allocated memory that could not be parked, by the reason.
    stays: Mapping[str, int]
    #: Of torch's allocator.
    reserved_before: int
    reserved_after: int
    #: Held by this process outside torch's allocator (CUDA context, libraries); None if unknown.
    outside: int | None = None


@dataclass(frozen=True)
class ParkedMemory(Result):
    """The result of ``%gpumem park``, by CUDA ordinal."""

    devices: Mapping[int, DeviceParking] = field(default_factory=dict)
    #: For copying.
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def parked(self) -> int:
        """The bytes of all devices."""
        return sum(device.parked for device in self.devices.values())

    def _blocks(self) -> list[Block]:
        if not self.parked:
            return [Line.of("There is nothing to park."), *self._stays(), *dim_lines(self.notes)]
        columns = [Column("Device"), Column("Parked", "right"), Column("Stays", "right")]
        columns += [Column("Reserved", "right"), Column("Non-PyTorch", "right", rank=1)]
        rows = [
            [
                Cell(f"cuda:{ordinal}"),
                Cell(bytes_(device.parked), "good"),
                Cell(bytes_(sum(device.stays.values())), "warn" if device.stays else ""),
                Cell(f"{bytes_(device.reserved_before)} → {bytes_(device.reserved_after)}"),
                Cell(bytes_(device.outside)),
            ]
            for ordinal, device in self.devices.items()
        ]
        text = (
            f"Copied to host memory in {_speed(self.parked, self.seconds)}; it comes back before "
            "the next cell that is not only lines of %gpu or %gpumem, and by %gpumem unpark"
        )
        return [Grid(columns, rows), *self._stays(), *dim_lines((text, *self.notes))]

    def _stays(self) -> list[Line]:
        return [
            Line.of(f"cuda:{ordinal}: {bytes_(size)} stay: {reason}; see %gpumem vars", "warn")
            for ordinal, device in self.devices.items()
            for reason, size in device.stays.items()
        ]

    def __repr__(self) -> str:
        return f"<ParkedMemory: {self.parked} B>"


@dataclass(frozen=True)
class Unparked(Result):
    """The memory that was brought back from the host."""

    #: Bytes by CUDA ordinal.
    devices: Mapping[int, int] = field(default_factory=dict)
    storages: int = 0
    #: For copying.
    seconds: float = 0.0
    #: Seconds since it was parked.
    parked_for: float = 0.0

    def _blocks(self) -> list[Block]:
        if not self.storages:
            return [Line.of("Nothing is parked.", "dim")]
        sizes = ", ".join(f"{bytes_(n)} to cuda:{ordinal}" for ordinal, n in self.devices.items())
        speed = _speed(sum(self.devices.values()), self.seconds)
        # Of a long time the milliseconds are of no interest; of a short one they are all there is.
        passed = round(self.parked_for, 1) if self.parked_for >= 1 else self.parked_for
        return [Line.of(f"Brought back {sizes} in {speed}, parked for {seconds(passed)}.", "dim")]

    def __repr__(self) -> str:
        return f"<Unparked: {self.storages} {noun(self.storages, 'storage')}>"


def _speed(size: int, took: float) -> str:
    """Return how long a copy took, and bytes per second where that is known."""
    rate = f" ({bytes_(round(size / took))}/s)" if took and size else ""
    return f"{seconds(took)}{rate}"
