"""The memory that ``%gpumem free`` has freed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, cut, dim_lines
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result

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
    """The memory that ``%gpumem free`` has freed, or would free."""

    steps: tuple[FreeStep, ...] = ()
    #: Bytes by CUDA ordinal.
    allocated_before: Mapping[int, int] = field(default_factory=dict)
    allocated_after: Mapping[int, int] = field(default_factory=dict)
    reserved_before: Mapping[int, int] = field(default_factory=dict)
    reserved_after: Mapping[int, int] = field(default_factory=dict)
    #: Whether nothing was freed: the figures are estimates.
    dry_run: bool = False
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none; one line.
    error: str | None = None

    def _blocks(self) -> list[Block]:
        if self.error is not None:
            return [Line.of(f"Nothing to free: {self.error}", "dim")]
        devices = [i for i in self.allocated_before if _changed(self, i)]
        verb = "would free" if self.dry_run else "freed"
        if not devices:
            be = "is" if self.dry_run else "was"
            return [Line.of(f"There {be} nothing to free."), *dim_lines(self.notes)]
        blocks: list[Block] = []
        for ordinal in devices:
            columns = [Column(f"cuda:{ordinal} {verb}"), Column("Allocated", "right")]
            columns.append(Column("Reserved", "right"))
            rows = [_step(step, ordinal, self.dry_run) for step in self.steps]
            blocks += [Grid(columns, rows), _now(self, ordinal)]
        return [*blocks, *dim_lines(self.notes)]

    def __repr__(self) -> str:
        total = sum(self.allocated_before.values()) - sum(self.allocated_after.values())
        return f"<Freed: {total} B{', not yet' if self.dry_run else ''}>"


def _changed(result: Freed, ordinal: int) -> bool:
    pairs = (
        (result.allocated_before, result.allocated_after),
        (result.reserved_before, result.reserved_after),
    )
    return any(before.get(ordinal) != after.get(ordinal) for before, after in pairs)


def _step(step: FreeStep, ordinal: int, dry_run: bool) -> list[Cell]:
    unknown = dry_run and step.what == "collect garbage"
    return [
        cut(step.what, _LONGEST),
        Cell(DASH if unknown else bytes_(step.allocated.get(ordinal, 0))),
        Cell(DASH if unknown else bytes_(step.reserved.get(ordinal, 0))),
    ]


def _now(result: Freed, ordinal: int) -> Line:
    """Return the change: ``allocated 30.0 GiB → 2.00 GiB, reserved …``."""
    pairs = (
        ("allocated", result.allocated_before, result.allocated_after),
        ("reserved", result.reserved_before, result.reserved_after),
    )
    texts = (f"{n} {bytes_(b.get(ordinal))} → {bytes_(a.get(ordinal))}" for n, b, a in pairs)
    return Line.of(", ".join(texts), "" if result.dry_run else "good")
