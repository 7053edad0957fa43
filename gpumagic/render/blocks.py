"""What is shown, apart from how: tables and lines that text and HTML draw alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from gpumagic.system.text import listed

#: ``good``, ``warn`` and ``bad`` are colours; ``dim`` is less prominent, ``strong`` more; ``code``
#: is a line of source, its indentation kept.
Style = Literal["", "dim", "strong", "good", "warn", "bad", "code"]

#: A value that is not known.
DASH = "–"
#: At most so many rows of a table, and so many blocks of one result, are drawn.
ROWS = 1000


@dataclass(frozen=True)
class Sparkline:
    """A small curve without axes; text leaves it out."""

    #: Time before now in seconds, and value from 0 to 1, oldest first; a value is None where it is
    #: not known. Each holds until the next one.
    points: Sequence[tuple[float, float | None]]
    #: How many seconds the curve shows.
    seconds: float
    #: What it shows, in words: read aloud, and shown on hover.
    label: str
    #: Whether it is less prominent.
    dim: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table, or a part of a line; ``bar`` is the filled part of a bar, 0 to 1."""

    text: str
    style: Style = ""
    bar: float | None = None
    spark: Sparkline | None = None


@dataclass(frozen=True)
class Column:
    """The header of a table's column, and how the column gives way to a narrow terminal."""

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
    #: What a notebook shows when the line is opened; text leaves it out.
    folded: str = ""

    @classmethod
    def of(cls, text: str, style: Style = "", folded: str = "") -> Line:
        """Return a line of one style."""
        return cls((Cell(text, style),), folded)


Block: TypeAlias = Grid | Line


def dim_lines(texts: Iterable[str]) -> list[Block]:
    """Return a dim line for each text: the notes of a result."""
    return [Line.of(text, "dim") for text in texts]


def names_line(before: str, names: Sequence[str], after: str = "") -> Line:
    """Return a dim line with the first of the names; all of them are folded where they are many."""
    short, every = listed(names), ", ".join(names)
    return Line.of(f"{before}{short}{after}", "dim", "" if short == every else every)


def shortened(text: str, longest: int) -> str:
    """Return ``text``, cut to ``longest`` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def bounded(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield the blocks up to `ROWS` of them and of each table's rows, and how many were left out.

    The length of a table may be the choice of another process.
    """
    for block in blocks[:ROWS]:
        if isinstance(block, Grid) and len(block.rows) > ROWS:
            yield replace(block, rows=block.rows[:ROWS])
            yield _more(len(block.rows))
        else:
            yield block
    if len(blocks) > ROWS:
        yield _more(len(blocks))


def _more(number: int) -> Line:
    return Line.of(f"and {number - ROWS} more", "dim")
