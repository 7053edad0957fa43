"""A line of the table: ours, what it is compared with, and the bar."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.render.units import seconds


@dataclass(frozen=True)
class Row:
    """One measurement and its verdict."""

    name: str
    ours: float
    reference: float
    #: What the reference is, and how it was measured.
    note: str
    #: The bar: the most, and the least, that ``ours / reference`` may be; None for no bar.
    most: float | None = None
    least: float = 0.0
    #: What is counted; seconds if nothing is.
    counted: str = ""

    @property
    def passed(self) -> bool | None:
        """The verdict; None where there is no bar."""
        return None if self.most is None else self.least <= self.ours / self.reference <= self.most

    def __str__(self) -> str:
        verdict = {True: "ok", False: "MISSED", None: ""}[self.passed]
        bar = "" if self.most is None else f"; bar: {self.least:g} to {self.most:g}"
        figures = f"{self._figure(self.ours)} to {self._figure(self.reference)}"
        ratio = f"ratio {self.ours / self.reference:.4g}{bar}"
        return f"{verdict:6}  {self.name}: {figures}, {ratio} ({self.note})"

    def _figure(self, value: float) -> str:
        return f"{value:.4g} {self.counted}" if self.counted else seconds(value)
