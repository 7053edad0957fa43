"""Text from outside gpumagic in one line; an exception in one line.

The names of processes, hosts and users, the errors of engines and exceptions are chosen by others:
they must not control the terminal, reverse the direction of the text after them, hide words in a
notebook or fill it.
"""

from __future__ import annotations

import re
import unicodedata

#: The most characters that are shown of a text, and of an exception.
LONGEST, REASON = 2000, 300
#: The most lines that are shown of a message.
_LINES = 40
#: Where an object is in memory, as Python writes it: ``<function f at 0x7f…>``.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: Unicode's Default_Ignorable_Code_Point, as far as Python takes them for printable, with the
#: joiners; and the Braille pattern without a dot.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060\u2800\u3164"
    "\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
#: The most marks over or under one letter: more would be drawn over the lines above and below.
_MARKS = 3


def harmless(text: str, longest: int = LONGEST) -> str:
    """Return at most ``longest`` characters of ``text`` as one line of visible characters.

    White space becomes blanks, what shows nothing goes, and so do marks that are piled on a letter;
    control and direction characters and unpaired surrogates (undecodable bytes) become U+FFFD.
    """
    text = shortened(text, longest)
    if text.isascii() and text.isprintable():  # the most: a table has hundreds
        return text
    shown, marks = list[str](), 0
    for char in _INVISIBLE.sub("", text):
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        if marks <= _MARKS:
            shown.append(_visible(char))
    return "".join(shown)


def shortened(text: str, longest: int) -> str:
    """Return ``text``, cut to ``longest`` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else "\ufffd"


def harmless_lines(text: str) -> str:
    """Return `harmless` of each line of a message that may have several."""
    return "\n".join(map(harmless, text.split("\n")[:_LINES]))


def reason(error: object) -> str:
    """Return the first line of an exception's message; the name of its type if it has none.

    With the next line where it ends in a colon ("See:"), and without addresses in memory.
    """
    try:
        lines = str(error).strip()[: 10 * LONGEST].splitlines()
    except Exception:  # a foreign class, whose __str__ raises
        lines = []
    first = " ".join(map(str.strip, lines[: 2 if lines and lines[0].rstrip().endswith(":") else 1]))
    return harmless(_ADDRESS.sub("", first) or type(error).__name__, REASON)


def named(error: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    name, message = harmless(type(error).__name__, REASON), reason(error)
    return f"{name}: {message}" if message != name else name
