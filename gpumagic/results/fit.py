"""The largest value of a variable with which a cell fits into GPU memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, dim_lines
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result, data_frame

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class FitRun:
    """One run of the cell."""

    value: int
    #: Bytes above the start; None if memory ran out.
    peak: int | None

    @property
    def fits(self) -> bool:
        """Whether the cell ran to its end."""
        return self.peak is not None


@dataclass(frozen=True)
class Fit(Result):
    """The result of ``%%gpumem --fit NAME=LOW:HIGH``."""

    #: The variable.
    name: str
    #: The largest value with which the cell ran; None where it did not run with any.
    largest: int | None
    #: In the order in which they ran.
    runs: tuple[FitRun, ...]
    #: Whether the next larger value is known not to fit, or is above ``HIGH``.
    exact: bool
    #: The peaks lie on ``at_zero + per_unit * value ** power``, in bytes; None for fewer than two.
    per_unit: float | None = None
    at_zero: float | None = None
    notes: tuple[str, ...] = ()
    #: 1 for a line, as batches have it; 2 where the memory grows with the square of the value.
    power: float = 1.0

    def needed(self, value: int) -> int | None:
        """Return the bytes for a value by the curve; None where there is none."""
        if self.per_unit is None or self.at_zero is None:
            return None
        needed: float = self.at_zero + self.per_unit * float(value) ** self.power
        return round(needed)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a run, in their order (needs pandas). Bytes."""
        rows = [(run.value, run.peak, run.fits) for run in self.runs]
        return data_frame(rows, ["value", "peak", "fits"], types={"peak": "Int64"})

    def _blocks(self) -> list[Block]:
        rows = [
            (
                Cell(f"{run.value:,}"),
                Cell(bytes_(run.peak)) if run.fits else Cell("✗ out of memory", "bad"),
            )
            for run in sorted(self.runs, key=lambda run: run.value)
        ]
        columns = (Column(self.name, "right"), Column("Peak", "right"))
        return [Line.of(self._verdict()), Grid(columns, rows), *dim_lines(self._lines())]

    def _verdict(self) -> str:
        if self.largest is None:
            return f"{self.name} = {self.runs[0].value:,} does not fit: memory ran out."
        value = f"{self.name} = {self.largest:,}"
        failed = min((run.value for run in self.runs if not run.fits), default=None)
        if not self.exact and failed is not None:
            return f"{value} fits, {failed:,} does not; a value between them may."
        if not self.exact:
            return f"{value} is the largest value that ran; a larger one may fit."
        if all(run.fits for run in self.runs):
            return f"{value} fits: the end of the range."
        return f"{value} is the largest value that fits."

    def _lines(self) -> list[str]:
        lines = []
        if self.power != 1:
            lines.append(f"the peak grows with {self.name} to the power of {self.power:.1f}")
        elif self.per_unit is not None:
            lines.append(f"{bytes_(round(self.per_unit))} per unit of {self.name}")
        if self.largest:
            power = 1 << self.largest.bit_length()
            needed = self.needed(power)
            if needed is not None:
                lines.append(f"{self.name} = {power:,} would need {bytes_(needed)}")
        return [*lines, *self.notes]

    def __repr__(self) -> str:
        return f"<Fit: {self.name} = {self.largest}>"
