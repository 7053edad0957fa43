"""Text from outside, before it is drawn: names of processes, hosts and users, engines' errors.

Whoever chose it must not steer the terminal, turn the direction of what follows, hide words in a
notebook or fill it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpumagic.display.grid import Block, Grid, Line

#: So many characters are drawn of one text.
LONGEST = 2000
#: So many rows of a table, and so many tables and lines of one result.
ROWS = 1000
#: Invisible, and needed to write some languages and emojis.
_JOINERS = "\u200c\u200d"


def harmless(text: str) -> str:
    """``text`` in one line of what can be seen, at most `LONGEST` characters of it.

    Control and direction characters, halves of surrogate pairs (undecodable bytes) and what is
    invisible become U+FFFD, a tab blanks.
    """
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 1]}…"
    if text.isprintable():
        return text
    return "".join(map(_seen, text.expandtabs(4)))


def _seen(char: str) -> str:
    if char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs":
        return char
    return "\ufffd"


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
