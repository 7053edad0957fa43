"""Text from outside in one line: names of processes, hosts and users, engines' errors, exceptions.

Whoever chose it must not steer the terminal, turn the direction of what follows, hide words in a
notebook or fill it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

#: So many characters are drawn of one text, and told of an exception.
LONGEST, REASON = 2000, 300
#: Invisible, and needed to write some languages and emojis.
_JOINERS = "\u200c\u200d"
#: Invisible, though Unicode counts them as letters, marks or signs: fillers and selectors.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
#: So many marks and joiners belong to one character: more of them cover the lines around, or hide.
_MARKS = 4


def harmless(text: str, longest: int = LONGEST) -> str:
    """``text`` in one line of what can be seen, at most ``longest`` characters of it.

    Control and direction characters, halves of surrogate pairs (undecodable bytes), what is
    invisible and marks without end become U+FFFD, a tab blanks.
    """
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(_seen(text.expandtabs(4)))


def _seen(text: str) -> Iterator[str]:
    marks = 0
    for char in text:
        category = unicodedata.category(char)
        joined = category[0] == "M" or char in _JOINERS
        marks = marks + 1 if joined else 0
        known = char.isprintable() or char in _JOINERS or category == "Zs"
        yield char if known and marks <= _MARKS and not _INVISIBLE.match(char) else "\ufffd"


def reason(error: object) -> str:
    """What an exception says, in one short line; its type's name where it says nothing."""
    try:
        lines = str(error).strip()[: 10 * LONGEST].splitlines()
    except Exception:  # a class of somebody's, whose text fails itself
        lines = []
    return harmless(lines[0] if lines else type(error).__name__, REASON)


def named(error: BaseException) -> str:
    """An exception's type and `reason`."""
    name, said = harmless(type(error).__name__, REASON), reason(error)
    return f"{name}: {said}" if said != name else name
