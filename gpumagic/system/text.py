"""Text from outside gpumagic in one line; an exception in one line; counts with their nouns.

The names of processes, hosts and users, the errors of engines and exceptions are chosen by others:
they must not control the terminal, reverse the direction of the text after them, hide words in a
notebook or fill it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

#: The most characters that are shown of a text, and of an exception.
LONGEST, REASON = 2000, 300
#: The most lines that are shown of a message.
_LINES = 40
#: Where an object is in memory, as Python writes it: ``<function f at 0x7f…>``.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_Key = TypeVar("_Key", bound=Hashable)
#: Unicode's Default_Ignorable_Code_Point, as far as Python takes them for printable, with the
#: joiners; and the Braille pattern without a dot.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060\u2800\u3164"
    "\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def harmless(text: str, longest: int = LONGEST) -> str:
    """Return at most ``longest`` characters of ``text`` as one line of visible characters.

    White space becomes blanks, what shows nothing goes; control and direction characters and
    unpaired surrogates (undecodable bytes) become U+FFFD.
    """
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    return "".join(map(_visible, _INVISIBLE.sub("", text)))


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


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return the names, or the first ``most`` of them and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is like ``word``; empty where none is."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def grouped(pairs: Iterable[tuple[_Key, int]]) -> dict[_Key, list[int]]:
    """Return the numbers that go with each key, in the order in which they came, each once."""
    numbers: dict[_Key, dict[int, None]] = {}
    for key, number in pairs:
        numbers.setdefault(key, {})[number] = None
    return {key: [*found] for key, found in numbers.items()}


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: ``1 GPU``, ``2 GPUs``, ``1,024 GPUs``."""
    return f"{count:,} {noun(count, one, many)}"


def noun(count: int, one: str, many: str | None = None) -> str:
    """Return the form of a noun that agrees with ``count``; ``many`` if it is not ``one`` + s."""
    return one if count == 1 else many or f"{one}s"
