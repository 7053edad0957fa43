"""The forms of a magic's line, declared: the options of each as they are written, and their help.

A form is the magic alone, or with one of its verbs. Its options are the fields of a dataclass::

    @dataclass(frozen=True)
    class WatchOptions(Options):
        every: float = section("watch")("--every SECONDS", "between two updates", duration, 1.0)

    Form("%gpu watch [on|off]", WatchOptions, "a panel beside the cells; off ends it")

Forms need no IPython and nothing that measures: completion reads them at a key press.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import cleandoc, get_annotations
from typing import Any, ClassVar, NamedTuple, NoReturn

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import excess, variable_name

#: The names of forms: a line without a verb, a choice of GPUs, a line that asks for the help.
PLAIN, SPEC, HELP = "", "SPEC", "help"
#: The options that `Options` and `BaselineOptions` declare.
RESULT = ("-o", "-v", "-q")
BASELINE = ("--against", "--fail-above", "--save")
#: Columns of a terminal, and of the verbs and options on the left.
_WIDTH, _LEFT = 79, 30
#: What argparse says of an option or argument.
_OF_ARGUMENT = re.compile(r"argument ([^:]+): (.*)", re.DOTALL)
#: Where a field has its `_Option`.
_OPTION = "option"


class _Option(NamedTuple):
    """An option, or without ``names`` the argument behind a verb; and what argparse gets of it."""

    names: tuple[str, ...]
    settings: dict[str, Any]
    #: In the help: its section, how it is written, and what it does.
    section: str = ""
    written: str = ""
    about: str = ""
    #: The option without which it is refused, in a form that has both.
    needs: str = ""


def section(title: str) -> Callable[..., Any]:
    """Return what declares the options of a section of the help."""

    def option(
        written: str,
        about: str,
        type: Callable[[str], Any] = str,
        default: Any = None,
        *,
        needs: str = "",
        **settings: Any,
    ) -> Any:
        """Declare an option as it is written: ``-q``, or ``-t, --targets ENGINES`` with a value."""
        *names, last = written.replace(",", " ").split()
        if last.startswith("-"):
            names, default, settings = [*names, last], False, {"action": "store_true"}
        else:
            settings |= {"metavar": last, "type": type}
        declared = _Option((*names,), settings, title, written, about, needs)
        return field(default=default, metadata={_OPTION: declared})

    return option


def argument(nargs: str | None = "?", **settings: Any) -> Any:
    """Declare the argument behind a verb, as argparse has it; it may be left out by default."""
    declared = _Option((), {"nargs": nargs, **settings})
    return field(default=() if nargs == "*" else None, metadata={_OPTION: declared})


# --- options of several magics --------------------------------------------------------------------

by_line = section("line by line")
comparing = section("comparing")
_result = section("result")
_cluster = section("cluster (needs ipyparallel)")


def functions() -> Any:
    """Declare ``-f``, which goes with ``--lines``."""
    about = "with --lines: this function's lines, too"
    return by_line("-f FUNC", about, default=(), needs="--lines", action="append")


@dataclass(frozen=True)
class Options:
    """The options of every form; those that have more are subclasses."""

    #: By option the other options beside which it is refused.
    apart: ClassVar[Mapping[str, Collection[str]]] = {}

    output: bool = _result("-o", "return the result object")
    variable: str | None = _result("-v NAME", "store it in NAME", variable_name)
    quiet: bool = _result("-q", "print nothing (a final ; does the same)")


@dataclass(frozen=True)
class NamesOptions(Options):
    names: Sequence[str] = argument("*")


@dataclass(frozen=True)
class PlotOptions(Options):
    file: str | None = argument()


@dataclass(frozen=True)
class BaselineOptions(Options):
    """Of code whose result is written to a file, or compared with one."""

    save: str | None = comparing("--save FILE", "write the result to FILE, as JSON")
    against: str | None = comparing("--against FILE", "compare with the result in FILE")
    fail_above: float | None = comparing(
        "--fail-above PERCENT",
        "and fail if it is so much higher, e.g. 10%",
        excess,
        needs="--against",
    )


@dataclass(frozen=True)
class TargetOptions(Options):
    targets: str | None = _cluster(
        "-t, --targets ENGINES", "only these engines: 2, 0,3, 0:4", needs="--cluster"
    )


@dataclass(frozen=True)
class ClusterOptions(TargetOptions):
    cluster: bool = _cluster("--cluster", "on the engines, not in this process")


# --- a form ---------------------------------------------------------------------------------------


def _declared(options: type[Options]) -> Iterator[tuple[str, _Option]]:
    """Yield the fields of a dataclass and what they declare; the fields of its bases last."""
    left = {each.name: each for each in fields(options) if _OPTION in each.metadata}
    for kind in options.__mro__:
        for name in [name for name in get_annotations(kind) if name in left]:
            yield name, left.pop(name).metadata[_OPTION]


class Form(argparse.ArgumentParser):
    """A form of a magic's line, which reads its options; an error is a `SpecError` of one line.

    ``written`` is the form as it is written: ``%gpu SPEC``, or a verb with its argument, as
    ``%gpumem limit [SIZE|PERCENT|off]``. ``about`` is the help of a verb: what it does.
    """

    def __init__(self, written: str, options: type[Options] = Options, about: str = "") -> None:
        words = written.split()
        super().__init__(prog=" ".join(words[:2]), add_help=False, allow_abbrev=False)
        self.magic = words[0]
        self.written, self.options, self.about = written, options, about
        self.name = PLAIN if words[1:] in ([], ["STATEMENT"]) else words[1]
        # A word that begins with a number is no option: -1,0 has a message of its own.
        self._negative_number_matcher = re.compile(r"-\d\S*$")
        #: By title of the help: the options as they are written, and what they do.
        self.sections: dict[str, dict[str, str]] = {}
        #: By option whether it takes a value.
        self.takes: dict[str, bool] = {}
        for name, option in _declared(options):
            self.takes |= dict.fromkeys(option.names, "metavar" in option.settings)
            if option.names:
                self.sections.setdefault(option.section, {})[option.written] = option.about
                self.add_argument(*option.names, dest=name, default=None, **option.settings)
            else:
                self.add_argument(name, **option.settings)

    def choices(self) -> list[str]:
        """Return the words of which its argument is one."""
        return [word for action in self._actions for word in action.choices or ()]

    def read(self, words: Sequence[str]) -> tuple[Options, Mapping[str, Any], list[str]]:
        """Return the options, the values of those that are given, and the words of no option.

        Raises:
            SpecError: a value does not fit, or options do not go together.
        """
        found, rest = self.parse_known_intermixed_args(words)
        values = {name: value for name, value in vars(found).items() if value not in (None, [])}
        used = {
            option.names[0]: (option, values[name])
            for name, option in _declared(self.options)
            if option.names and name in values
        }
        for name, (option, _) in used.items():
            if option.needs not in {"", *used} and option.needs in self.takes:
                typed = f"{self.magic} {option.needs} … {name} …"
                raise SpecError(f"{name} goes with {option.needs}: {typed}")
            beside = ", ".join(each for each in self.options.apart.get(name, ()) if each in used)
            if beside:
                raise SpecError(f"{name} does not go with {beside}: leave one of them out")
        return self.options(**values), {name: value for name, (_, value) in used.items()}, rest

    def error(self, message: str) -> NoReturn:
        """Raise what argparse says, without its names of what was typed."""
        typed = self.magic if self.name in (PLAIN, SPEC) else self.prog
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


# --- the help -------------------------------------------------------------------------------------


def help_page(text: str, forms: Collection[Form]) -> str:
    """Return a magic's help: ``text``, and above its examples the verbs and the options."""
    text, heading, examples = cleandoc(text).partition("\n\nExamples\n")
    sections: dict[str, dict[str, str]] = {}
    for form in forms:
        for title, added in form.sections.items():
            sections.setdefault(title, {}).update(added)
    sections["result"] = sections.pop("result")  # each form's first one
    verbs = _rows((form.written, form.about) for form in forms if form.about)
    options = [line for title, rows in sections.items() for line in (title, *_rows(rows.items()))]
    return "\n".join([text, *verbs, "", *options]) + heading + examples


def _rows(rows: Iterable[tuple[str, str]]) -> list[str]:
    left = " " * _LEFT
    return [
        textwrap.fill(
            about,
            _WIDTH,
            initial_indent=f"  {written} ".ljust(_LEFT),
            subsequent_indent=left,
            break_on_hyphens=False,
        )
        for written, about in rows
    ]
