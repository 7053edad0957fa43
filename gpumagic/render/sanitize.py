"""What is drawn of text from outside, and of tables whose length somebody else chose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpumagic.render.blocks import Block, Grid, Line
from gpumagic.system.text import harmless

#: So many rows of a table, and so many tables and lines of one result.
ROWS = 1000


def harmless_lines(text: str) -> str:
    """`harmless` for each line of a message that may have several."""
    return "\n".join(map(harmless, text.split("\n")[:_LINES]))


_LINES = 40


def bounded(blocks: Sequence[Block]) -> Iterator[Block]:
    """The blocks, of which no more are drawn than anybody reads, and how many more there are."""
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
