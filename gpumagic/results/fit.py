"""The largest value of a variable with which a cell fits into GPU memory."""

from __future__ import annotations

from dataclasses import dataclass


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
