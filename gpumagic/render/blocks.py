"""What is shown, apart from how: blocks of lines and tables that text and HTML draw alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: ``good``, ``warn`` and ``bad`` colour a value; ``dim`` steps back; ``strong`` stands out;
#: ``code`` is a line of source, its indentation kept.
Style = Literal["", "dim", "strong", "good", "warn", "bad", "code"]

DASH = "–"


@dataclass(frozen=True)
class Cell:
    """A table's cell: text, a style, and perhaps a bar filled from 0 to 1."""

    text: str
    style: Style = ""
    bar: float | None = None


@dataclass(frozen=True)
class Column:
    header: str
    align: Literal["left", "right"] = "left"
    #: Narrow terminals drop the columns of the highest rank first; rank 0 is never dropped.
    rank: int = 0
    #: Before that, its cells are shortened to this width, if it is above 0.
    least: int = 0


@dataclass(frozen=True)
class Grid:
    """A table. ``rows`` hold as many cells as there are ``columns``."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    #: Whether the columns' headers are shown.
    header: bool = True


@dataclass(frozen=True)
class Line:
    """A line of text, possibly several styles in one line."""

    parts: Sequence[Cell]

    @classmethod
    def of(cls, text: str, style: Style = "") -> Line:
        return cls((Cell(text, style),))


Block: TypeAlias = Grid | Line
