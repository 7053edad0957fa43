"""Options of the magics: argparse, with one clear line where something is wrong.

A magic's parser is built by a plain function that needs no IPython, so that the documentation can
be generated from it.
"""

from __future__ import annotations

import argparse
import difflib
import keyword
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gpumagic.errors import SpecError
from gpumagic.magics.help import formatted


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises `SpecError` and never exits or prints."""

    def __init__(self, magic: str, **options: Any) -> None:
        super().__init__(
            prog=magic,
            add_help=False,
            allow_abbrev=False,
            **options,
        )
        # What begins with a number is no option: -1,0 is a mistake that can be named.
        self._negative_number_matcher = re.compile(r"-\d[\d.,-]*$")

    def error(self, message: str) -> NoReturn:
        stop = "" if message.endswith("?") else "."
        raise SpecError(f"{self.prog}: {message}{stop} Try {self.prog.split()[0]}?")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise SpecError(message or f"{self.prog}: stopped")

    def format_help(self) -> str:
        return formatted(self)

    def given(self, options: argparse.Namespace) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name: ``{"-n": 5}``."""
        return {
            action.option_strings[0]: getattr(options, action.dest)
            for action in self._actions
            if action.option_strings and getattr(options, action.dest) != action.default
        }

    def option_strings(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]

    def parse_words(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse ``words``; an unknown option is answered with the nearest known one.

        Raises:
            SpecError: the words do not fit.
        """
        # Intermixed: options may also stand between a verb and its arguments.
        known, rest = self.parse_known_intermixed_args(self._with_values(words))
        if rest:
            word = rest[0]
            if word.startswith("-"):
                name = word.split("=", 1)[0]
                near = difflib.get_close_matches(name, self.option_strings(), n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.error(f"unknown option {name}{hint}")
            self.error(f"unexpected {word!r}")
        return known

    def _with_values(self, words: Sequence[str]) -> list[str]:
        """The words; a value such as ``-1:``, which argparse takes for an option, at its option."""
        single = {
            option
            for action in self._actions
            if action.nargs is None
            for option in action.option_strings
        }
        found: list[str] = []
        wants_value = _wants_value(self)
        for joined in words:
            flags, word = ([], joined) if "--" in found else _apart(joined, wants_value)
            found += flags
            if found and found[-1] in single and re.match(r"-\d", word):
                found[-1] += word if len(found[-1]) == 2 else f"={word}"
            else:
                found.append(word)
        return found


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """The options that every magic has."""
    group = parser.add_argument_group("result")
    group.add_argument("-o", dest="output", action="store_true", help="return the result object")
    group.add_argument(
        "-v", dest="variable", metavar="NAME", type=_name, help="store the result object in NAME"
    )
    group.add_argument("-q", dest="quiet", action="store_true", help="print nothing")


def _name(word: str) -> str:
    if not word.isidentifier() or keyword.iskeyword(word):
        raise argparse.ArgumentTypeError(f"{word!r} is not a variable name")
    return word


def split(line: str) -> list[str]:
    """A magic's line as words, quotes as in a shell.

    Raises:
        SpecError: a quotation is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise SpecError(f"{error} in {line!r}") from None


def take_options(parser: Parser, line: str) -> tuple[argparse.Namespace, str]:
    """The options at the beginning of ``line``, and the rest as it was written: a statement.

    ``--`` ends the options, for a statement that begins with a minus sign. A value that begins with
    a quote ends with it. A ``;`` at the end belongs to no option: it is the rest.

    Raises:
        SpecError: an option does not fit.
    """
    taken, rest = _take(parser, line)
    return parser.parse_words(taken), rest


def _apart(text: str, wants_value: Mapping[str, bool]) -> tuple[list[str], str]:
    """The options without a value that stand joined in front: of ``-qon 2`` those, and ``-n 2``."""
    flags: list[str] = []
    while wants_value.get(text[:2]) is False and text[:1] == "-" and f"-{text[2:3]}" in wants_value:
        flags.append(text[:2])
        text = f"-{text[2:]}"
    return flags, text


def _wants_value(parser: Parser) -> dict[str, bool]:
    return {
        option: action.nargs != 0 for action in parser._actions for option in action.option_strings
    }


def _take(parser: Parser, line: str) -> tuple[list[str], str]:
    """Return the options of a line as words for argparse, and the rest of the line."""
    wants_value = _wants_value(parser)
    taken: list[str] = []
    rest = line.strip()
    while rest.startswith("-"):
        flags, before = _apart(rest, wants_value)
        taken += flags
        name, _, rest = before.partition(" ")
        rest = rest.lstrip()
        if name == "--":
            break
        joined = _joined(name, wants_value)
        if joined:
            name, rest = joined, before[len(joined) :].removeprefix("=")
        elif not rest and name.endswith(";"):
            name, rest = name[:-1], ";"
        word = name
        if wants_value.get(name) and rest:
            value, rest = _take_value(rest)
            # argparse would take a value that begins with a minus sign for an option.
            word = name + value if len(name) == 2 else f"{name}={value}"
        taken.append(word)
    return taken, rest


def _joined(word: str, wants_value: Mapping[str, bool]) -> str | None:
    """The option's name in ``-s='…'``, ``-s'…'`` or ``--name="…"``; None for a word without."""
    name, equals, value = word.partition("=")
    if not equals:
        name, value = word[:2], word[2:]
    return name if value[:1] in ("'", '"') and wants_value.get(name) else None


def _take_value(text: str) -> tuple[str, str]:
    """The first word of ``text``, or what stands there in quotes, and the rest."""
    quote = text[0]
    if quote in "'\"":
        value, closed, rest = text[1:].partition(quote)
        if not closed:
            raise SpecError(f"no closing quotation in {text!r}")
    else:
        value, _, rest = text.partition(" ")
        if not rest and value.endswith(";"):
            value, rest = value[:-1], ";"
    return value, rest.lstrip()


def take_semicolon(line: str) -> tuple[str, bool]:
    """The line without a trailing ``;``, and whether there was one."""
    stripped = line.rstrip()
    if stripped.endswith(";"):
        return stripped[:-1].rstrip(), True
    return line, False


_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def percentage(text: str) -> float:
    """A percentage from 0 to 100, with or without its sign."""
    try:
        value = float(text.rstrip("%"))
    except ValueError:
        value = -1
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return value


def size(text: str) -> int:
    """Bytes from ``20GiB``, ``20G``, ``500MB``, ``1.5g``: ``KB`` is 1000 bytes, ``K``/``KiB`` 1024.

    Raises:
        argparse.ArgumentTypeError: not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 20GiB or 500MiB")
    number, prefix, binary = match.groups()
    exponent = " kmgt".index(prefix.lower() or " ")
    decimal = bool(prefix) and not binary and text.strip().lower().endswith("b")
    found = float(number) * (1000 if decimal else 1024) ** exponent
    if found >= 2**63:  # more than can be addressed; infinity is no int
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is more than any memory has")
    return int(found)


#: Seconds that every clock and every wait can count: the system counts them in 31 bits of ms.
_LONGEST = 1e6
_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}


def duration(text: str) -> float:
    """Seconds from ``0.5``, ``0.5s``, ``500ms`` or ``2min``.

    Raises:
        argparse.ArgumentTypeError: not a duration above 0.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min|)\s*", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0; write 2s or 500ms")
    found = float(match[1]) * _UNITS[match[2]]
    if found > _LONGEST:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is too long; at most {_LONGEST:.0f}s")
    return found


def excess(text: str) -> float:
    """Return what is allowed above a baseline, as a part of it, from ``10%`` or ``10`` percent.

    Raises:
        argparse.ArgumentTypeError: no percentage of 0 or more.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%?\s*", text)
    if match is None or float(match[1]) > 1e6:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a percentage; write 10%")
    return float(match[1]) / 100


def share(text: str) -> float:
    """A part of a whole from ``1%`` or ``0.01``: above 0 and below 1.

    Raises:
        argparse.ArgumentTypeError: none of these.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text)
    value = 0.0 if match is None else float(match[1]) / (100 if match[2] else 1)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write 1% or 0.01")
    return value
