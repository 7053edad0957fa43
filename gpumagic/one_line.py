"""Text from outside in one line: names of processes, hosts and users, engines' errors, exceptions.

Whoever chose it must not steer the terminal, turn the direction of what follows, hide words in a
notebook or fill it.
"""

from __future__ import annotations

import unicodedata

#: So many characters are drawn of one text, and told of an exception.
LONGEST, REASON = 2000, 300
#: Invisible, and needed to write some languages and emojis.
_JOINERS = "\u200c\u200d"


def harmless(text: str, longest: int = LONGEST) -> str:
    """``text`` in one line of what can be seen, at most ``longest`` characters of it.

    Control and direction characters, halves of surrogate pairs (undecodable bytes) and what is
    invisible become U+FFFD, a tab blanks.
    """
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    if text.isprintable():
        return text
    return "".join(map(_seen, text.expandtabs(4)))


def _seen(char: str) -> str:
    if char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs":
        return char
    return "\ufffd"


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
