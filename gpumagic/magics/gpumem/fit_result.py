"""The largest value of a variable with which a cell fits: ``%%gpumem --fit``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpumagic.render.blocks import Block, Figures, Grid, Line, Styled
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result


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


@dataclass(frozen=True, repr=False)
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

    def _records(self) -> Iterable[Mapping[str, Any]]:
        return ({"value": run.value, "peak": run.peak, "fits": run.fits} for run in self.runs)

    def _blocks(self) -> Iterator[Block]:
        failed = Styled("✗ out of memory", "bad")
        yield Line.of(self.verdict)
        yield Grid.of(
            sorted(self.runs, key=lambda run: run.value),
            Figures(self.name, lambda run: f"{run.value:,}"),
            Figures("Peak above start", lambda run: bytes_(run.peak) if run.fits else failed),
        )

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        if self.largest is None:
            return f"{self.name} = {self.runs[0].value:,} does not fit: memory ran out."
        value = f"{self.name} = {self.largest:,}"
        peaks = {run.peak for run in self.runs}
        if len(peaks) == 1 < len(self.runs):
            same = bytes_(self.runs[0].peak)
            return f"The cell does not depend on {self.name}: its peak is {same} with every value."
        failed = min((run.value for run in self.runs if not run.fits), default=None)
        if failed is not None:
            between = "" if self.exact else " The values between them were not tried."
            return f"{value} fits, {failed:,} does not.{between}"
        if self.exact:
            return f"{value} fits: the end of the range."
        return f"{value} is the largest value that ran; a larger one may fit."
