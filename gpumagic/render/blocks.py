"""Blocks: the tables and lines that `render.text` and `render.html` draw."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from gpumagic.render.source_code import CodeLine, SourceCode
from gpumagic.system.text import listed

#: ``good``, ``warn`` and ``bad`` are colours; ``dim`` is less prominent, ``strong`` more; ``code``
#: is a line of source with its indentation, ``command`` a command to type.
Style = Literal["", "dim", "strong", "good", "warn", "bad", "code", "command"]
#: The use of a part of a device's memory; the rest of a bar is free memory.
Use = Literal["allocated", "cached", "outside", "others", "unknown"]
USES: Mapping[Use, str] = {
    "allocated": "allocated",
    "cached": "cached",
    "outside": "non-PyTorch",
    "others": "other processes",
    "unknown": "in use, not known by what",
}

#: A value that is not known.
DASH = "–"
#: The most rows of a table, and the most blocks of one result, that are drawn.
ROWS = 1000


@dataclass(frozen=True)
class Cell:
    """A cell of a table, or a part of a line; ``bar`` is the filled part of a bar, 0 to 1."""

    text: str
    style: Style = ""
    bar: float | None = None
    #: The parts of a bar by their use, 0 to 1, in place of ``bar``.
    stack: Mapping[Use, float] | None = None
    #: The whole of a shortened text, shown on hover; never data of another user, since it is saved
    #: with the notebook.
    whole: str | None = None
    #: Of which source ``text`` is a line: drawn in the colours of its parts.
    code: CodeLine | None = None

    @classmethod
    def of_code(cls, source: SourceCode, place: int) -> Cell:
        """Return a cell with a line of a source."""
        return cls(source.lines[place], "code", code=CodeLine(source, place))

    @property
    def has_bar(self) -> bool:
        return self.bar is not None or self.stack is not None


@dataclass(frozen=True)
class Column:
    """The header of a table's column, and how it is shortened in a narrow terminal."""

    header: str
    align: Literal["left", "right"] = "left"
    #: Narrow terminals drop the columns of the highest rank first; rank 0 is never dropped.
    rank: int = 0
    #: The width to which its cells are shortened before that; 0 if they are not.
    least: int = 0
    #: Whether a cell is broken between words, rather than shortened.
    wrap: bool = False


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
    #: The text that a notebook shows when the line is opened; omitted in a terminal.
    folded: str = ""

    @classmethod
    def of(cls, text: str, style: Style = "", folded: str = "") -> Line:
        """Return a line of one style."""
        return cls((Cell(text, style),), folded)


@dataclass(frozen=True)
class Callout:
    """Blocks with a vertical rule in the colour of ``style`` on their left."""

    blocks: Sequence[Line | Grid]
    style: Style = "bad"


@dataclass(frozen=True)
class Fold:
    """Blocks below a summary: folded in a notebook; in a terminal only the summary is shown."""

    summary: str
    blocks: Sequence[Line | Grid]


@dataclass(frozen=True)
class Legend:
    """The legend of the stacked bars above."""

    uses: Sequence[Use]


Block: TypeAlias = Grid | Line | Callout | Fold | Legend


#: A text, and the command at its end.
_WITH_COMMAND = re.compile(r"(.*: )(%{1,2}[a-z]+(?: [^.:;,]+)?)")


def without_empty(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Grid:
    """Return a table without the columns in which no row has anything."""
    used = [i for i in range(len(columns)) if any(row[i].text or row[i].has_bar for row in rows)]
    return Grid([columns[i] for i in used], [[row[i] for i in used] for row in rows])


def dim_lines(texts: Iterable[str]) -> list[Block]:
    """Return a dim line for each text: the notes of a result. A command at the end is one."""
    found = [(text, _WITH_COMMAND.fullmatch(text)) for text in texts]
    return [
        Line.of(text, "dim")
        if with_command is None
        else Line((Cell(with_command[1], "dim"), Cell(with_command[2], "command")))
        for text, with_command in found
    ]


def names_line(before: str, names: Sequence[str], after: str = "") -> Line:
    """Return a dim line with the names; of many, with the first ones, and all of them folded."""
    short, every = listed(names), ", ".join(names)
    return Line.of(f"{before}{short}{after}", "dim", "" if short == every else every)


def use_of(
    total: int | None,
    free: int | None,
    *,
    allocated: int | None,
    reserved: int | None,
    outside: int | None,
    others: int | None,
) -> Mapping[Use, float] | None:
    """Return the shares of a device's memory by use; None where not known. Arguments in bytes.

    Memory in use that no argument counts is ``unknown``.
    """
    if not total or free is None:
        return None
    uses: dict[Use, int] = {
        "allocated": allocated or 0,
        "cached": max((reserved or 0) - (allocated or 0), 0),
        "outside": outside or 0,
        "others": others or 0,
    }
    uses["unknown"] = max(total - free - sum(uses.values()), 0)
    # Below a hundredth it is a rounding difference between NVML and the CUDA runtime.
    if uses["unknown"] < total / 100:
        uses["unknown"] = 0
    return {use: size / total for use, size in uses.items() if size}


def marked_memory(text: str, used: float | None, **bar: Any) -> Cell:
    """Return a cell with a device's memory, marked if of its share ``used`` little is free."""
    tone: Style = "" if used is None or used < 0.9 else "warn" if used < 0.97 else "bad"
    return Cell("! " * bool(tone) + text, tone, **bar)


def legend(stacks: Iterable[Mapping[Use, float] | None]) -> list[Block]:
    """Return the legend of stacked bars, with the uses that occur; empty if there are no bars."""
    shown = {use for stack in stacks for use in stack or ()}
    return [Legend([use for use in USES if use in shown])] if shown else []


def filled(share: float, steps: int) -> int:
    """Return how many of a bar's ``steps`` are filled: 0 only for 0, all only for 1."""
    if share <= 0:
        return 0
    return steps if share >= 1 else min(max(round(share * steps), 1), steps - 1)


def stack_slots(stack: Mapping[Use, float], slots: int) -> dict[Use, int]:
    """Return how many of a bar's ``slots`` each use has: together as many as `filled` says.

    A use of less than a slot may have none: its share is then in another's.
    """
    shares = {use: share for use, share in stack.items() if share > 0}
    whole = sum(shares.values())
    count = filled(whole, slots)
    parts = {use: share / whole * count for use, share in shares.items()}
    found = {use: int(part) for use, part in parts.items()}
    rest = sorted(parts, key=lambda use: (parts[use] - found[use], parts[use]), reverse=True)
    for use in rest[: count - sum(found.values())]:
        found[use] += 1
    return {use: number for use, number in found.items() if number}


_UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]+")


def short_uuids(text: str) -> str:
    """Return ``text`` with its UUIDs shortened to prefixes that `%gpu` accepts."""
    return _UUID.sub(r"\1…", text)


def shortened(text: str, longest: int) -> str:
    """Return ``text``, cut to ``longest`` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def cut(text: str, longest: int, style: Style = "") -> Cell:
    """Return a cell with ``text`` cut to ``longest`` characters, and the whole of it on hover.

    For what is the user's own: the notebook is saved with it.
    """
    return Cell(shortened(text, longest), style, whole=text)


def few(names: Sequence[str], most: int, style: Style = "") -> Cell:
    """Return a cell with the first of the names, and all of them on hover."""
    return Cell(listed(names, most), style, whole=", ".join(names))


def bounded(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield at most `ROWS` blocks and rows of each table, with the number of omitted ones.

    Other processes may determine the length of a table.
    """
    for block in blocks[:ROWS]:
        if isinstance(block, (Callout, Fold)):
            yield replace(block, blocks=tuple(bounded(block.blocks)))  # type: ignore[arg-type]
        elif isinstance(block, Grid) and len(block.rows) > ROWS:
            yield replace(block, rows=block.rows[:ROWS])
            yield _more(len(block.rows))
        else:
            yield block
    if len(blocks) > ROWS:
        yield _more(len(blocks))


def _more(number: int) -> Line:
    return Line.of(f"and {number - ROWS} more", "dim")
