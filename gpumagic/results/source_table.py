"""The table of a cell's or a function's lines, with figures beside the source."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from gpumagic.render.blocks import Column, Figures, Grid, Line, Styled, Text
from gpumagic.render.source_code import source_cells
from gpumagic.render.units import DASH

#: The most lines in a row without figures that are all shown.
_LONGEST_GAP = 8
#: Of more, the lines that are shown at each end.
_EDGE = 2
#: What is said of time that belongs to no line.
BETWEEN = "(between the lines)"
_Item = TypeVar("_Item")


def _one(number: int) -> range:
    return range(number, number + 1)


@dataclass(frozen=True)
class Source:
    """The cell, or a function: the base of what was measured of its lines."""

    #: ``cell`` or the function's name.
    name: str
    #: The number of the first line of ``text``.
    first: int
    text: tuple[str, ...]
    #: Whether there is nothing in it to run.
    empty: bool = field(default=False, kw_only=True)

    def nothing(self) -> Line:
        """Return why there are no figures."""
        why = "nothing to run" if self.empty else "was not seen to run in this cell's thread"
        return Line.of(f"{self.name}: {why}", "dim")

    def rows(self, relevant: Container[int]) -> Iterator[range]:
        """Yield the lines of each row of a table: one, or those that are left out together."""
        numbers = range(self.first, self.first + len(self.text))
        for shown, group in groupby(numbers, lambda number: number in relevant):
            lines = [*map(_one, group)]
            if not shown and len(lines) > _LONGEST_GAP:
                lines[_EDGE:-_EDGE] = [range(lines[_EDGE].start, lines[-_EDGE].start)]
            yield from lines

    def grid(self, items: Mapping[range, _Item | None], *figures: Column[_Item]) -> Grid:
        """Return a table of the figures of rows; the row with no line is between the lines."""
        texts = source_cells(self.text)

        def number(lines: range) -> Styled:
            return Styled({0: DASH, 1: str(lines.start)}.get(len(lines), ""), "dim")

        def of_item(figure: Column[_Item]) -> Column[range]:
            def cell(lines: range) -> Text:
                return "" if (item := items[lines]) is None else figure.cell(item)

            return Figures(figure.header, cell, figure.rank)

        def text(lines: range) -> Styled:
            if len(lines) == 1:
                return texts[lines.start - self.first]
            return Styled(f"⋯ {len(lines)} lines" if lines else BETWEEN, "dim")

        # A line of source is known by its beginning: it gives way before figures do.
        source = Column("Source", text, least=20)
        return Grid.of(items, Figures("Line", number), *map(of_item, figures), source)
