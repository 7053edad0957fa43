"""A line of the table: ours, what it is compared with, and the bar."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measurement and its verdict. Made by the class methods below."""

    name: str
    #: None where it could not be measured.
    ours: float | None
    reference: float | None
    #: ours / reference; None where the reference is 0.
    ratio: float | None
    #: What the ratio (or, for equality, the figure) must satisfy, for people; "" for no bar.
    bar: str = ""
    #: None where there is no bar.
    passed: bool | None = None
    #: ``"s"``, ``"bytes"`` or anything else that is written behind the figure.
    unit: str = "s"
    #: What the reference is, and how it was measured.
    note: str = ""

    @classmethod
    def at_most(
        cls, name: str, ours: float, reference: float, limit: float, unit: str = "s", note: str = ""
    ) -> Row:
        """The ratio may be ``limit`` at most."""
        ratio = _ratio(ours, reference)
        passed = ratio is not None and ratio <= limit
        return cls(name, ours, reference, ratio, f"≤ {limit:g}", passed, unit, note)

    @classmethod
    def within(
        cls,
        name: str,
        ours: float,
        reference: float,
        low: float,
        high: float,
        unit: str = "s",
        note: str = "",
    ) -> Row:
        """The ratio must lie between ``low`` and ``high``."""
        ratio = _ratio(ours, reference)
        passed = ratio is not None and low <= ratio <= high
        return cls(name, ours, reference, ratio, f"{low:g} to {high:g}", passed, unit, note)

    @classmethod
    def equal(
        cls, name: str, ours: float, reference: float, unit: str = "bytes", note: str = ""
    ) -> Row:
        """The two figures must be equal, exactly."""
        same = ours == reference
        return cls(name, ours, reference, _ratio(ours, reference), "equal", same, unit, note)

    @classmethod
    def shown(
        cls, name: str, ours: float, reference: float, unit: str = "s", note: str = ""
    ) -> Row:
        """No bar: beside the others for comparison."""
        return cls(name, ours, reference, _ratio(ours, reference), "", None, unit, note)

    @classmethod
    def missing(cls, name: str, reason: str) -> Row:
        """A peer that is not here, or does not say what is asked of it: no bar of ours."""
        return cls(name, None, None, None, note=f"not measured: {reason}")

    @classmethod
    def failed(cls, benchmark: str, reason: str) -> Row:
        """A benchmark, or what is left of it, that could not be measured: below every bar."""
        return cls(benchmark, None, None, None, "", False, note=f"not measured: {reason}")


def _ratio(ours: float, reference: float) -> float | None:
    return ours / reference if reference else None
