"""A form of a magic's line: its options and arguments, as they are written, and their help.

Each verb is a form with a parser of its own, so that options which do not go together are refused
by the parser. Forms need no IPython and nothing that measures: completion reads them at a key
press.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import excess, limit, variable_name

#: The form of a line without a verb; that of a choice of GPUs; a line that asks for the help.
PLAIN, SPEC, HELP = "", "SPEC", "help"
#: The options of every form, and those of `Parser.add_baseline`.
RESULT = ("-o", "-v", "-q")
BASELINE = ("--against", "--fail-above", "--save")
#: What argparse says of an option or argument.
_OF_ARGUMENT = re.compile(r"argument ([^:]+): (.*)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """The options and arguments of a form, and their help; an error is a `SpecError` of one line.

    ``written`` is the form as it is written: ``%gpu SPEC``, or a verb with its argument, as
    ``%gpumem limit [SIZE|PERCENT|off]``. ``about`` is the help of a verb: what it does.
    """

    def __init__(self, written: str, about: str = "") -> None:
        words = written.split()
        super().__init__(prog=" ".join(words[:2]), add_help=False, allow_abbrev=False)
        self.magic = words[0]
        self.written, self.about = written, about
        self.form = PLAIN if words[1:] in ([], ["STATEMENT"]) else words[1]
        for argument in words[2:]:
            self._add_argument_as_written(argument)
        #: By title of the help: the options as they are written, and what they do.
        self.sections: dict[str, dict[str, str]] = {}
        # A word that begins with a number is no option: -1,0 has a message of its own.
        self._negative_number_matcher = re.compile(r"-\d\S*$")
        self._partners: list[tuple[str, str]] = []
        self._apart: list[tuple[str, Collection[str]]] = []
        add = self.section("result")
        add("-o", "return the result object", dest="output")
        add("-v NAME", "store it in NAME", variable_name, dest="variable")
        add("-q", "print nothing (a final ; does the same)", dest="quiet")

    def section(self, title: str) -> Callable[..., None]:
        """Return what adds options to a section of the help: ``add("-n N", "loops", count)``."""
        return partial(self._add_option, self.sections.setdefault(title, {}))

    def _add_option(
        self,
        section: dict[str, str],
        written: str,
        about: str,
        value: Callable[[str], Any] = str,
        **more: Any,
    ) -> None:
        """Add an option as it is written: ``-q``, or ``-t, --targets ENGINES`` with a value."""
        section[written] = about
        *names, last = written.replace(",", " ").split()
        if last.startswith("-"):
            self.add_argument(*names, last, action="store_true", **more)
        else:
            self.add_argument(*names, metavar=last, type=value, **more)

    def needs(self, partner: str, *options: str) -> None:
        """Refuse these options without their ``partner``."""
        self._partners += [(option, partner) for option in options]

    def apart(self, option: str, others: Iterable[str]) -> None:
        """Refuse an option beside any of the others."""
        self._apart.append((option, tuple(others)))

    def _add_argument_as_written(self, written: str) -> None:
        """Add an argument: ``FILE``, ``[FILE]``, ``[NAMES]``, ``[on|off]``."""
        name = written.strip("[]")
        words = name.split("|")
        optional = "*" if name == "NAMES" else "?"
        self.add_argument(
            "switch" if name.islower() else words[0].lower(),
            nargs=optional if name != written else None,
            choices=words if name.islower() else None,
            metavar=name,
            type=limit if name == "SIZE|PERCENT|off" else str,
        )

    # --- options of several magics ---------------------------------------------------------------

    def add_baseline(self) -> None:
        """Add ``--save``, ``--against`` and ``--fail-above``."""
        add = self.section("comparing")
        add("--save FILE", "write the result to FILE, as JSON")
        add("--against FILE", "compare with the result in FILE")
        add("--fail-above PERCENT", "and fail if it is so much higher, e.g. 10%", excess)
        self.needs("--against", "--fail-above")

    def add_lines(self, about: str) -> None:
        """Add ``--lines`` and ``-f``."""
        add = self.section("line by line")
        add("--lines", about)
        more = "with --lines: this function's lines, too"
        add("-f FUNC", more, dest="functions", action="append", default=[])
        self.needs("--lines", "-f")

    def add_targets(self, only_here: Collection[str] = ()) -> None:
        """Add ``--cluster`` and ``-t``; ``only_here`` has no meaning for the engines."""
        add = self.section("cluster (needs ipyparallel)")
        add("--cluster", "on the engines, not in this process")
        add("-t, --targets ENGINES", "only these engines: 2, 0,3, 0:4")
        if only_here:
            self.needs("--cluster", "-t")
            self.apart("--cluster", only_here)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, words: Sequence[str]) -> tuple[argparse.Namespace, Mapping[str, Any], list[str]]:
        """Return the options, those that were given, and the words that are none of this form.

        Raises:
            SpecError: a value does not fit, or options do not go together.
        """
        options, rest = self.parse_known_intermixed_args(words)
        given = {
            action.option_strings[0]: getattr(options, action.dest)
            for action in self._actions
            if action.option_strings and getattr(options, action.dest) != action.default
        }
        for option, partner in self._partners:
            if option in given and partner not in given:
                typed = f"{self.magic} {partner} … {option} …"
                raise SpecError(f"{option} goes with {partner}: {typed}")
        for option, others in self._apart:
            beside = ", ".join(each for each in others if each in given)
            if option in given and beside:
                raise SpecError(f"{option} does not go with {beside}: leave one of them out")
        return options, given, rest

    def option_strings(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Raise what argparse says, without its names of what was typed."""
        typed = self.magic if self.form in (PLAIN, SPEC) else self.prog
        of = _OF_ARGUMENT.fullmatch(message)
        if of is not None:
            option, _, _ = of[1].partition("/")
            typed, message = f"{typed} {option}" if option.startswith("-") else typed, of[2]
        said = {
            "expected": "the value is missing",
            "ignored": "it takes no value",
            "invalid choice": f"write {self.written}",
            "the following": f"write {self.written}",
        }
        message = next((said[begin] for begin in said if message.startswith(begin)), message)
        stop = "" if message.endswith("?") else "."
        raise SpecError(f"{typed}: {message}{stop} Help: {self.magic}?")
