"""GPU memory that was freed, parked in host memory, or brought back from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, cut, dim_lines
from gpumagic.render.units import bytes_, seconds
from gpumagic.results.base import Result
from gpumagic.system.text import noun

#: Characters of a step that are shown: it may name many variables.
_LONGEST = 48


@dataclass(frozen=True)
class FreeStep:
    """One step of ``%gpumem free``, and the bytes that it freed, by CUDA ordinal."""

    what: str
    #: Returned to the allocator.
    allocated: Mapping[int, int] = field(default_factory=dict)
    #: Returned to the device.
    reserved: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Freed(Result):
    """The memory that ``%gpumem free`` has freed."""

    steps: tuple[FreeStep, ...] = ()
    #: Bytes by CUDA ordinal.
    allocated_before: Mapping[int, int] = field(default_factory=dict)
    allocated_after: Mapping[int, int] = field(default_factory=dict)
    reserved_before: Mapping[int, int] = field(default_factory=dict)
    reserved_after: Mapping[int, int] = field(default_factory=dict)
    #: The variables that were deleted.
    deleted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        devices = [i for i in self.allocated_before if self._has_changed(i)]
        if not devices:
            done = f"Deleted {', '.join(self.deleted)}: no" if self.deleted else "No"
            text = f"{done} GPU memory was freed."
            return [Line.of(text), *dim_lines(self.notes)]
        blocks: list[Block] = []
        for ordinal in devices:
            columns = [Column(f"cuda:{ordinal} freed"), Column("Allocated", "right")]
            columns.append(Column("Reserved", "right"))
            rows = [
                [
                    cut(step.what, _LONGEST),
                    Cell(bytes_(step.allocated.get(ordinal, 0))),
                    Cell(bytes_(step.reserved.get(ordinal, 0))),
                ]
                for step in self.steps
            ]
            blocks += [Grid(columns, rows), self._now(ordinal)]
        return [*blocks, *dim_lines(self.notes)]

    def __repr__(self) -> str:
        total = sum(self.allocated_before.values()) - sum(self.allocated_after.values())
        return f"<Freed: {total} B>"

    def _has_changed(self, ordinal: int) -> bool:
        pairs = (
            (self.allocated_before, self.allocated_after),
            (self.reserved_before, self.reserved_after),
        )
        return any(before.get(ordinal) != after.get(ordinal) for before, after in pairs)

    def _now(self, ordinal: int) -> Line:
        """Return the change: ``allocated 30.0 GiB → 2.00 GiB, reserved …``."""
        pairs = (
            ("allocated", self.allocated_before, self.allocated_after),
            ("reserved", self.reserved_before, self.reserved_after),
        )
        texts = (f"{n} {bytes_(b.get(ordinal))} → {bytes_(a.get(ordinal))}" for n, b, a in pairs)
        return Line.of(", ".join(texts), "good")


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
