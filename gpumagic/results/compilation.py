"""What torch.compile compiled while code was timed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Compilation:
    """One compilation of a function by torch.compile; None for what torch did not record."""

    function: str | None = None
    file: str | None = None
    line: int | None = None
    seconds: float | None = None
    #: Why it was compiled once more, in torch's words; None for the first time.
    reason: str | None = None
    #: Why it could not be compiled, in torch's words.
    failure: str | None = None
