"""The compilations and graph breaks of torch.compile while code was timed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Compilation:
    """One compilation of a function by torch.compile; None for fields that torch did not record."""

    function: str | None = None
    file: str | None = None
    line: int | None = None
    seconds: float | None = None
    #: torch's reason for a recompilation; None for the first compilation.
    reason: str | None = None
    #: torch's reason why it could not be compiled, and the line that it names.
    failure: str | None = None
    failed_file: str | None = None
    failed_line: int | None = None
    #: Whether it is that of a backward pass, for which torch records no function.
    backward: bool = False
    #: The line of code that ``reason`` is about.
    reason_file: str | None = None
    reason_line: int | None = None


@dataclass(frozen=True)
class GraphBreak:
    """The graph breaks of torch.compile at one line; None where torch did not record the line."""

    #: torch's reason.
    reason: str
    count: int = 1
    function: str | None = None
    file: str | None = None
    line: int | None = None
