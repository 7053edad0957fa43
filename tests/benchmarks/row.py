"""A line of the table: ours, what it is compared with, and the bar."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gpumagic.render.units import bytes_, seconds


@dataclass(frozen=True)
class Row:
    """One measurement and its verdict."""

    name: str
    #: None where it could not be measured.
    ours: float | None
    reference: float | None
    #: What the reference is, and how it was measured.
    note: str
    #: The bar: the most, and the least, that ``ours / reference`` may be; None for no bar.
    most: float | None = None
    least: float | None = None
    #: ``"s"``, ``"bytes"`` or anything else that is written behind the figure.
    unit: str = "s"
    #: Whether the benchmark itself has failed.
    failed: bool = False

    @property
    def ratio(self) -> float | None:
        """``ours / reference``; None where one is unknown or the reference is 0."""
        return self.ours / self.reference if self.ours is not None and self.reference else None

    @property
    def bar(self) -> str:
        """What the ratio must satisfy, for people; "" for no bar."""
        if self.most is None:
            return ""
        if self.least is None:
            return f"≤ {self.most:g}"
        return "equal" if self.least == self.most else f"{self.least:g} to {self.most:g}"

    @property
    def passed(self) -> bool | None:
        """The verdict; None where there is no bar, or nothing could be measured."""
        if self.failed:
            return False
        if self.most is None or self.ours is None:
            return None
        ratio = self.ratio
        return ratio is not None and (self.least or 0.0) <= ratio <= self.most

    def figure(self, value: float | None) -> str:
        """Return ours or the reference as it is written."""
        if value is None:
            return "–"
        if self.unit == "s":
            return seconds(value)
        return bytes_(int(value)) if self.unit == "bytes" else f"{value:.4g} {self.unit}"

    def to_dict(self) -> dict[str, Any]:
        shown = [self.figure(self.ours), self.figure(self.reference)]
        verdict = {"ratio": self.ratio, "bar": self.bar, "passed": self.passed}
        return {**asdict(self), **verdict, "shown": shown}


def known(name: str, ours: float, true: float, slack: float = 0.02) -> Row:
    """Return the row of a time that is known."""
    return Row(name, ours, true, "the true duration", 1 + slack, 1 - slack)


def equal(name: str, ours: float, reference: float, note: str, unit: str = "bytes") -> Row:
    """Return the row of a figure that has to be exact."""
    return Row(name, ours, reference, note, 1.0, 1.0, unit)


def missing(name: str, error: Exception) -> Row:
    """Return the row of a peer that is not here: no bar of ours."""
    return Row(name, None, None, f"not measured: {reason(error)}")


def reason(error: Exception) -> str:
    """The last line of an error, which is what a script said last."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
