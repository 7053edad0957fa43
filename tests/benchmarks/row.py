"""A line of the table: ours, what it is compared with, and the bar."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.render.units import bytes_, seconds


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
    #: ``"s"``, ``"bytes"`` or anything else that is written behind the figure.
    unit: str = "s"

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
        if self.unit == "s":
            return seconds(value)
        return bytes_(int(value)) if self.unit == "bytes" else f"{value:.4g} {self.unit}"


def known(name: str, ours: float, true: float) -> Row:
    """Return the row of a time that is known."""
    return Row(name, ours, true, "the true duration", 1.02, 0.98)


def equal(name: str, ours: float, reference: float, note: str, unit: str = "bytes") -> Row:
    """Return the row of a figure that has to be exact."""
    return Row(name, ours, reference, note, 1.0, 1.0, unit)
