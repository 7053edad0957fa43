"""Blocks: the tables and lines that `render.text` and `render.html` draw."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from gpumagic.render.units import bytes_
from gpumagic.system.text import shortened
from gpumagic.wording import listed

#: The parts of a line of source.
Code = Literal["keyword", "string", "number", "comment", "name"]
#: ``good``, ``warn`` and ``bad`` are colours; ``dim`` is less prominent, ``strong`` more; ``code``
#: is a line of source with its indentation, ``command`` a command to type.
Style = Literal["", "dim", "strong", "good", "warn", "bad", "code", "command", Code]
#: The use of a part of a device's memory; the rest of a bar is free memory.
Use = Literal["allocated", "cached", "outside", "others", "unknown"]
USES: Mapping[Use, str] = {
    "allocated": "allocated",
    "cached": "cached",
    "outside": "non-PyTorch",
    "others": "other processes",
    "unknown": "in use, not known by what",
}

_UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]+")

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Styled:
    """A cell of a table, or a part of a line."""

    text: str
    style: Style = ""
    #: The filled part of a bar beside the text, 0 to 1; or its parts by their use.
    bar: float | Mapping[Use, float] | None = None
    #: The whole of a shortened text, shown on hover; never data of another user, since it is saved
    #: with the notebook.
    whole: str | None = None
    #: The parts of ``text`` where it is a line of source (`source_code.source_cells`).
    parts: Sequence[tuple[str, Style]] = ()

    @classmethod
    def bytes(cls, value: int | None, *, sign: bool = False, bar: float | None = None) -> Styled:
        """Return bytes, or a change of bytes; 0 and what is not known are dim."""
        return cls(bytes_(value, sign=sign), "" if value else "dim", bar)

    @classmethod
    def memory(
        cls, text: str, used: float | None, bar: Mapping[Use, float] | None = None
    ) -> Styled:
        """Return a device's memory, marked if of its share ``used`` little is free.

        The bar is that share, or its parts by use.
        """
        tone: Style = "" if used is None or used < 0.9 else "warn" if used < 0.97 else "bad"
        return cls(f"! {text}" if tone else text, tone, used if bar is None else bar)

    @classmethod
    def cut(cls, text: str, longest: int, style: Style = "") -> Styled:
        """Return ``text`` cut to ``longest`` characters, and the whole of it on hover.

        For what is the user's own: the notebook is saved with it.
        """
        return cls(shortened(text, longest), style, whole=text)

    @classmethod
    def uuids(cls, text: str, style: Style = "dim") -> Styled:
        """Return ``text`` with UUIDs shortened to prefixes that `%gpu` accepts, whole on hover."""
        return cls(_UUID.sub(r"\1…", text), style, whole=text.strip())

    @classmethod
    def few(cls, names: Sequence[str], most: int = 8, style: Style = "") -> Styled:
        """Return the first names, and all names on hover."""
        return cls(listed(names, most), style, whole=", ".join(names))


#: What has no style may be a string.
Text: TypeAlias = "str | Styled"


@dataclass(frozen=True)
class Column(Generic[_Item]):
    """A table's column: its header, its cell of an item, and its place in a narrow terminal."""

    header: str
    cell: Callable[[_Item], Text] = str
    #: Narrow terminals drop the columns of the highest rank first; rank 0 is never dropped.
    rank: int = 0
    #: The width to which its cells are shortened before that; 0 if they are not.
    least: int = 0
    #: Whether a cell is broken between words, rather than shortened.
    wrap: bool = False
    align: Literal["left", "right"] = "left"


@dataclass(frozen=True)
class Figures(Column[_Item]):
    """A column of figures, which end together."""

    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Grid:
    """A table, which is drawn if it has rows; each has as many cells as there are ``columns``."""

    columns: Sequence[Column[Any]]
    rows: Sequence[Sequence[Styled]]

    @property
    def has_header(self) -> bool:
        """Whether a column has a header: else there is no row for them."""
        return any(column.header for column in self.columns)

    @classmethod
    def of(
        cls,
        items: Iterable[_Item],
        *columns: Column[_Item],
        dim: Callable[[_Item], bool] = lambda _: False,
    ) -> Grid:
        """Return a table with a row for each item; ``dim`` says whether its strings are dim.

        A column in which no row has anything is left out.
        """
        rows = [[_cell(column.cell(item), dim(item)) for column in columns] for item in items]
        used = [
            any(cell.text or cell.bar is not None for cell in of) for of in zip(*rows, strict=True)
        ]
        return cls([*compress(columns, used)], [[*compress(row, used)] for row in rows])


@dataclass(frozen=True)
class Line:
    """A line of text, possibly several styles in one line."""

    parts: Sequence[Styled]

    @classmethod
    def of(cls, text: str, style: Style = "") -> Line:
        """Return a line of one style."""
        return cls((Styled(text, style),))

    @classmethod
    def join(cls, *parts: Text) -> Line:
        """Return a line of several parts."""
        return cls([_cell(part) for part in parts])

    @classmethod
    def title(cls, names: Sequence[str | None]) -> list[Line]:
        """Return a line with the name of several devices; none where it is not the same for all."""
        if len({*names}) != 1 or names[0] is None:
            return []
        return [cls.of(names[0] if len(names) == 1 else f"{len(names)} × {names[0]}", "strong")]

    @classmethod
    def notes(cls, texts: Iterable[str], style: Style = "dim") -> list[Line]:
        """Return a line for each text: the notes of a result."""
        return [cls.of(text, style) for text in texts]


def _cell(text: Text, dim: bool = False) -> Styled:
    return text if isinstance(text, Styled) else Styled(text, "dim" if dim and text else "")


@dataclass(frozen=True)
class Callout:
    """Blocks with a red vertical rule on their left."""

    blocks: Sequence[Block]


@dataclass(frozen=True)
class Fold:
    """Blocks below a line: folded in a notebook."""

    summary: Line
    blocks: Sequence[Block]
    #: Whether a terminal, which cannot unfold them, shows them; else only the line.
    in_text: bool = False


Block: TypeAlias = "Grid | Line | Callout | Fold"
