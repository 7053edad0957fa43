"""Parse the options of the magics by argparse, with one clear line where something is wrong.

A magic's parser is made by a plain function that needs no IPython, so that the documentation can
be generated from it.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from gpumagic.cells.semicolon import take_semicolon
from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import PERCENTAGES, variable_name
from gpumagic.magics.help import formatted

#: What other programs show their help for.
_HELP = frozenset({"--help", "-h"})
#: What argparse says of an option at the end of the line.
_WITHOUT_VALUE = re.compile(r"argument (\S+): expected one argument")


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises `SpecError`, and neither exits nor prints."""

    def __init__(self, magic: str, **options: Any) -> None:
        super().__init__(
            prog=magic,
            add_help=False,
            allow_abbrev=False,
            **options,
        )
        # A word that begins with a number is no option: -1,0 has a message of its own.
        self._negative_number_matcher = re.compile(r"-\d\S*$")

    def error(self, message: str) -> NoReturn:
        if (bare := _WITHOUT_VALUE.fullmatch(message)) is not None:
            option = bare[1].split("/")[-1]
            action = next(each for each in self._actions if option in each.option_strings)
            message = f"{option} needs a value: {option} {action.metavar or action.dest.upper()}"
        stop = "" if message.endswith("?") else "."
        raise SpecError(f"{self.prog}: {message}{stop} Try {self.prog.split()[0]}?")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise SpecError(message or f"{self.prog}: stopped")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a word that is none of the ``choices``, without argparse's internal names."""
        if action.option_strings or action.choices is None or value in action.choices:
            super()._check_value(action, value)
            return
        self.error(f"write {' or '.join(map(str, action.choices))}, or nothing, not {value!r}")

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

    def parse_words(self, words: Sequence[str], code: str = "") -> argparse.Namespace:
        """Parse ``words``; an error on an unknown option suggests the nearest known one.

        ``code`` is the line, if it may be code that begins with a minus sign.

        Raises:
            SpecError: the words do not fit.
        """
        options = [*words[: words.index("--")]] if "--" in words else words
        if not _HELP.isdisjoint(options):
            raise SpecError(help_hint(self.prog))
        # Intermixed: options may come between a verb and its arguments, too.
        known, rest = self.parse_known_intermixed_args(self._with_values(words))
        if rest:
            word = rest[0]
            if word.startswith("-"):
                name = word.split("=", 1)[0]
                near = difflib.get_close_matches(name, self.option_strings(), n=1)
                hint = f"; code that begins so follows --: -- {code}" if code else ""
                hint = f"; did you mean {near[0]}?" if near else hint
                self.error(f"unknown option {name}{hint}")
            self.error(f"unexpected {word!r}")
        return known

    def _with_values(self, words: Sequence[str]) -> list[str]:
        """Return the words, a value such as ``-1:`` joined to its option.

        argparse would take it for an option.
        """
        single = {
            option
            for action in self._actions
            if action.nargs is None
            for option in action.option_strings
        }
        found: list[str] = []
        wants_value, percentages = _wants_value(self), _percentages(self)
        for joined in words:
            if joined == "%" and len(found) > 1 and found[-2] in percentages:
                continue  # 10 %
            flags, word = ([], joined) if "--" in found else _split_flags(joined, wants_value)
            found += flags
            if found and found[-1] in single and re.match(r"-\d", word):
                found[-1] += word if len(found[-1]) == 2 else f"={word}"
            else:
                found.append(word)
        return found


def help_hint(magic: str) -> str:
    """Return what to type for the help of a magic, or of a magic and its verb."""
    name = magic.split()[0]
    return f"{magic}: the help is shown by {name}?"


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every magic has."""
    group = parser.add_argument_group("result")
    group.add_argument("-o", dest="output", action="store_true", help="return the result object")
    group.add_argument(
        "-v",
        dest="variable",
        metavar="NAME",
        type=variable_name,
        help="store the result object in NAME",
    )
    group.add_argument("-q", dest="quiet", action="store_true", help="print nothing")


def add_functions_option(parser: Any) -> None:
    """Add ``-f``, which belongs to ``--lines``."""
    parser.add_argument(
        "-f",
        dest="functions",
        metavar="FUNC",
        action="append",
        default=[],
        help="with --lines, the lines of this function too; may be repeated",
    )


def split(line: str) -> list[str]:
    """Return the words of a magic's line, quotes as in a shell.

    Raises:
        SpecError: a quotation is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise SpecError(f"{error} in {line!r}") from None


def take_options(parser: Parser, line: str) -> tuple[argparse.Namespace, str]:
    """Return the options at the beginning of ``line``, and the rest as written: a statement.

    ``--`` ends the options, for a statement that begins with a minus sign. A value that begins with
    a quote ends with it; one that is the name of an option is in quotes, or joined by ``=``. A
    ``;`` at the end belongs to no option: it is the rest.

    Raises:
        SpecError: an option does not fit.
    """
    taken, rest = _take(parser, line)
    code = line.strip() if len(taken) == 1 and rest and taken[0][:2] != "--" else ""
    return parser.parse_words(taken, code), rest


def _split_flags(text: str, wants_value: Mapping[str, bool]) -> tuple[list[str], str]:
    """Split joined options without values from the first other one: ``-qon 2`` ends in ``-n 2``."""
    flags: list[str] = []
    while wants_value.get(text[:2]) is False and text[:1] == "-" and f"-{text[2:3]}" in wants_value:
        flags.append(text[:2])
        text = f"-{text[2:]}"
    return flags, text


def _wants_value(parser: Parser) -> dict[str, bool]:
    return {
        option: action.nargs != 0 for action in parser._actions for option in action.option_strings
    }


def _percentages(parser: Parser) -> set[str]:
    """Return the options whose value is a percentage."""
    return {
        option
        for action in parser._actions
        if action.type in PERCENTAGES
        for option in action.option_strings
    }


def _take(parser: Parser, line: str) -> tuple[list[str], str]:
    """Return the options of a line as words for argparse, and the rest of the line."""
    wants_value = _wants_value(parser)
    percentages = _percentages(parser)
    taken: list[str] = []
    rest = line.strip()
    while rest.startswith("-"):
        flags, before = _split_flags(rest, wants_value)
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
        if wants_value.get(name) and rest and not _begins_with_option(rest, wants_value):
            value, rest = _take_value(rest)
            if name in percentages and (rest == "%" or rest.startswith(("% ", "%;"))):
                rest = rest[1:].lstrip()  # 10 %
            # argparse would take a value that begins with a minus sign for an option.
            word = name + value if len(name) == 2 else f"{name}={value}"
        taken.append(word)
    return taken, rest


def _begins_with_option(text: str, wants_value: Mapping[str, bool]) -> bool:
    """Return whether the first word is an option: the value of the one before it is missing."""
    word = _split_flags(text.partition(" ")[0].removesuffix(";"), wants_value)[1]
    return word == "--" or word.partition("=")[0] in wants_value


def _joined(word: str, wants_value: Mapping[str, bool]) -> str | None:
    """Return the option's name in ``-s='…'``, ``-s'…'`` or ``--name="…"``; None for other words."""
    name, equals, value = word.partition("=")
    if not equals:
        name, value = word[:2], word[2:]
    return name if value[:1] in ("'", '"') and wants_value.get(name) else None


def _take_value(text: str) -> tuple[str, str]:
    """Return the first word of ``text``, or what is in quotes there, and the rest."""
    quote = text[0]
    if quote in "'\"":
        value, closed, rest = text[1:].partition(quote)
        if not closed:
            raise SpecError(f"no closing quotation in {text!r}")
        if rest[:1] not in ("", " ", "\t", ";", "%"):
            raise SpecError(f"no blank after the quotation in {text!r}")
    else:
        value, _, rest = text.partition(" ")
        if not rest and value.endswith(";"):
            value, rest = value[:-1], ";"
    return value, rest.lstrip()


class MagicLine(NamedTuple):
    """The line of a magic, parsed: its options, and the statement that follows them."""

    text: str
    options: argparse.Namespace
    #: The options that differ from their defaults, by name, as `Parser.given` returns them.
    given: Mapping[str, Any]
    #: The options, and what follows them, as they are written.
    written: str
    rest: str
    #: ``rest`` without a trailing ``;``, and whether there was one.
    statement: str
    silent: bool

    @property
    def is_code(self) -> bool:
        """Whether ``--`` says that code follows, and no verb."""
        return "--" in self.written.split()

    @property
    def quotes_hint(self) -> str:
        """What to type where the rest is rather the end of a value with a blank; else empty."""
        option, value = ["", "", *self.written.split()][-2:]
        is_text = option.startswith("--") and self.given.get(option) == value
        if not is_text or not re.fullmatch(r"[\w.-]+", self.statement):
            return ""
        return f"; a value with a blank is in quotes: {option} '{value} {self.statement}'"


def parse_line(parser: Parser, line: str, *, quiet: bool) -> MagicLine:
    """Parse the line of a magic that takes a statement; ``quiet`` as if ``-q`` were given.

    Raises:
        SpecError: an option does not fit.
    """
    options, rest = take_options(parser, line)
    given = parser.given(options)
    options.quiet = options.quiet or quiet
    written = line.strip().removesuffix(rest)
    return MagicLine(line, options, given, written, rest, *take_semicolon(rest))
