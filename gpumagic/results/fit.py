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
    notes: tuple[str, ...] = ()

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
        return [Line.of(self._verdict()), Grid(columns, rows), *dim_lines(self.notes)]

    def _verdict(self) -> str:
        if self.largest is None:
            return f"{self.name} = {self.runs[0].value:,} does not fit: memory ran out."
        value = f"{self.name} = {self.largest:,}"
        failed = min((run.value for run in self.runs if not run.fits), default=None)
        if self.exact:
            end = "fits: the end of the range" if failed is None else "is the largest that fits"
            return f"{value} {end}."
        if failed is not None:
            return f"{value} fits, {failed:,} does not; a value between them may."
        return f"{value} is the largest value that ran; a larger one may fit."

    def __repr__(self) -> str:
        return f"<Fit: {self.name} = {self.largest}>"
