"""A log of the cells of a session, and what its tables show of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from gpumagic.render.blocks import Style, Styled
from gpumagic.render.units import DASH
from gpumagic.results.base import Series

#: The most characters of a cell's first line.
_LONGEST = 44
_Entry = TypeVar("_Entry")


@dataclass(frozen=True, repr=False)
class Log(Series[_Entry]):
    """What was measured of each cell that ended while a log was on: the newest 10,000, in order."""

    _sequence = "cells"

    cells: tuple[_Entry, ...] = ()
    #: Whether the log is on.
    watching: bool = False

    def nothing(self, magic: str, done: str) -> str:
        """Return that the log is empty, and why."""
        if self.watching:
            return f"No cell has been {done} since '{magic} on'"
        return f"No cell has been {done} yet: '{magic} on' starts the log"


def first_line(source: str, style: Style = "", *, failed: bool = False) -> Styled:
    """Return a cell's first line as a table shows it."""
    return Styled.cut(source, _LONGEST, "bad" if failed else style)


def cell_number(number: int | None, *, failed: bool = False) -> Styled:
    """Return a cell's execution number as a table shows it: ``[3]``, ``✗ [3]`` if it failed."""
    text = DASH if number is None else f"[{number}]"
    return Styled(f"✗ {text}", "bad") if failed else Styled(text, "dim")
