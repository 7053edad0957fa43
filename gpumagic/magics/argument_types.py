"""The values on a magic's line: the types of arguments, and the variables that are named in them.

A type turns text into a value, or raises ``argparse.ArgumentTypeError``. IPython expands no line of
ours, because code may follow the options: `expanded` does.
"""

from __future__ import annotations

import keyword
import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any

from gpumagic.errors import SpecError

#: Larger numbers are refused: no loop ends after so many runs, no machine has so many threads.
_MOST = 10**9 - 1
_NUMBER = r"\s*(\d+(?:\.\d*)?|\.\d+)\s*"
_SIZE = re.compile(_NUMBER + r"([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_SHARE = re.compile(_NUMBER + r"(%?)\s*")
_DURATION = re.compile(_NUMBER + r"(us|µs|ms|s|min|m|h|)\s*")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "": 1, "min": 60, "m": 60, "h": 3600}
#: A smaller number of bytes is one of other units.
_LEAST = 2**20
#: The longest duration in seconds: systems count them in 31 bits of milliseconds.
_LONGEST = 1e6
#: A variable's name alone in braces.
_VARIABLE = re.compile(r"(?<!\{)\{([^\W\d]\w*)\}(?!\})")


def count(text: str, least: int = 1) -> int:
    """Return a number from ``least``."""
    # Python converts no text of thousands of digits.
    number = int(text) if text.isdecimal() and len(text) <= len(str(_MOST)) else -1
    if number < least:
        raise ArgumentTypeError(f"{text[:20]!r} is not a number from {least} to {_MOST:,}")
    return number


def variable_name(text: str) -> str:
    """Return the name of a variable."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ArgumentTypeError(f"{text!r} is not a variable name")
    return text


def excess(text: str) -> float:
    """Return the part of a baseline from ``10%`` or ``10``: how much more is allowed."""
    match = _SHARE.fullmatch(text)
    if match is None or float(match[1]) > 1e6:
        raise ArgumentTypeError(f"{text[:20]!r} is not a percentage; write 10%")
    if 0 < float(match[1]) < 1 and not match[2]:
        number = text[:20].strip()
        raise ArgumentTypeError(f"{number} is {number} %; write that with its sign, or 10%")
    return float(match[1]) / 100


def size(text: str) -> int:
    """Return bytes from ``20GiB``, ``20G``, ``500MB``, ``1.5g``.

    ``KB`` is 1000 bytes, ``K`` and ``KiB`` are 1024.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a size; write 20GiB or 500MiB")
    number, prefix, binary = match.groups()
    exponent = " kmgt".index(prefix.lower() or " ")
    decimal = bool(prefix) and not binary and text.strip().lower().endswith("b")
    value = float(number) * (1000 if decimal else 1024) ** exponent
    if not prefix and 0 < value < _LEAST and text.strip()[-1].isdigit():
        bare = text.strip()
        raise ArgumentTypeError(f"{text!r} has no unit; write {bare}GiB, {bare}MiB or {bare}B")
    if value >= 2**63:  # more than can be addressed; infinity is no int
        raise ArgumentTypeError(f"{text[:20]!r} is more than any memory has")
    return int(value)


def limit(text: str) -> int | float:
    """Return bytes from ``16GiB``, or a part of each device, a float, from ``50%``; 0: ``off``."""
    if text.lower() == "off":
        return 0
    found = excess(text) if text.endswith("%") else size(text)
    if not found or (isinstance(found, float) and found > 1):
        raise ArgumentTypeError(f"{text[:20]} is no limit; write 16GiB or 50%, or off")
    return found


def duration(text: str) -> float:
    """Return seconds above 0: ``0.5``, ``0.5s``, ``500ms``, ``2min``."""
    if seconds := duration_or_zero(text):
        return seconds
    raise ArgumentTypeError(f"{text[:20]!r} is not a time above 0; write 0.5s, 500ms or 2min")


def duration_or_zero(text: str) -> float:
    """Return seconds, which may be 0."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text[:20]!r} is not a time; write 0.5s, 500ms or 2min")
    value = float(match[1]) * _SECONDS[match[2]]
    if value > _LONGEST:
        raise ArgumentTypeError(f"{text[:20]!r} is too long; at most {_LONGEST:.0f}s")
    return value


def expanded(text: str, variables: Mapping[str, Any]) -> str:
    """Return a text with ``$name`` and ``{expression}`` replaced by their values, as IPython does.

    Unchanged where an expression fails; ``{{`` and ``}}`` stand for braces.

    Raises:
        SpecError: there is no variable of a name in braces: each result of a loop would get the
            same literal name.
    """
    if not {"{", "$"} & {*text}:
        return text
    from IPython.utils.text import DollarFormatter

    try:
        return DollarFormatter().vformat(text, (), {**variables})  # IPython 7 evaluates in a dict
    except NameError:
        missing = [name for name in _VARIABLE.findall(text) if name not in variables]
        if not missing:
            return text
    except Exception:
        return text
    raise SpecError(f"{text}: there is no variable {missing[0]!r}; {{{{ and }}}} write braces")
