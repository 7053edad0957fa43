"""The verbs of a magic: when the first word of a line is one, and which module runs it."""

from __future__ import annotations

import argparse
import ast
import builtins
import difflib
import keyword
import re
from collections.abc import Container, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from gpumagic.errors import SpecError
from gpumagic.magics.file_names import expanded_values
from gpumagic.magics.parsers import options_module
from gpumagic.magics.parsing import MagicLine, Parser, help_hint, split


class Verb(NamedTuple):
    """A verb of a magic."""

    #: The `VerbModule` of this package that runs it.
    module: str
    #: What completion says of it.
    meaning: str


#: By magic and verb.
VERBS: Mapping[str, Mapping[str, Verb]] = {
    "cudatime": {
        "on": Verb("cudatime.per_cell", "time every cell"),
        "off": Verb("cudatime.per_cell", "stop that"),
        "log": Verb("cudatime.per_cell", "all cells"),
    },
    "gpumem": {
        "on": Verb("gpumem.per_cell", "measure every cell"),
        "off": Verb("gpumem.per_cell", "stop that"),
        "log": Verb("gpumem.per_cell", "all cells"),
        "plot": Verb("gpumem.per_cell", "all cells"),
        "record": Verb("gpumem.history", "history"),
        "cells": Verb("gpumem.history", "memory by cell"),
        "snapshot": Verb("gpumem.history", "to a file"),
        "vars": Verb("gpumem.holders", "what holds memory"),
        "free": Verb("gpumem.holders", "free memory"),
        "explain": Verb("gpumem.holders", "out of memory"),
        "limit": Verb("gpumem.limit", "as a smaller GPU"),
        "park": Verb("gpumem.park", "to the host"),
        "unpark": Verb("gpumem.park", "to the device"),
    },
}

#: What follows a name only in a statement: ``log = 3``, ``log [0]``, ``log - 1``,
#: ``log if x else y``. Not ``-o``, an option, nor ``/tmp/file``, a path. ``-1`` may be an argument.
_OPERATOR = re.compile(
    r"[=(\[,:+*%@<>|&^!;]|[-/.](\s|$)|[-/]=|//|->|-\d"
    r"|(if|else|and|or|in|is|not\s+in|for)(\s|$)"
)


class VerbModule(Protocol):
    """A module that runs verbs of a magic."""

    def run(self, verb: str, magics: Any, options: argparse.Namespace, silent: bool) -> Any:
        """Run a verb and return its result."""


def take_verb(
    magic: str, line: MagicLine, names: Container[str] | None = None
) -> tuple[str, str] | None:
    """Return the verb of a line, and its options and arguments; None if it has no verb.

    ``names`` are those of variables, where they are known: ``log -1`` may be an expression.
    """
    word, _, rest = line.statement.partition(" ")
    rest = rest.lstrip()
    if word not in VERBS[magic] or line.is_code:
        return None
    is_code = _OPERATOR.match(rest) is not None
    if is_code and re.match(r"-\d", rest):
        is_code = _is_python(line.statement) and (names is None or word in names)
    if is_code:
        return None
    return word, f"{line.written} {rest}"


def _is_python(statement: str) -> bool:
    try:
        ast.parse(statement)
    except SyntaxError:
        return False
    return True


def check_name(
    magic: str, statement: str, *known: Mapping[str, Any], given: Iterable[str] = ()
) -> None:
    """Refuse a statement that is the name of no variable, and a verb or nearly one, or ``help``.

    ``given`` are the line's options; those that a verb does not have made a statement of it.

    Raises:
        SpecError: with what to type.
    """
    if not statement.isidentifier() or keyword.iskeyword(statement):
        return
    if any(statement in names for names in known):
        return
    if statement == "help":
        raise SpecError(help_hint(f"%{magic}"))
    if hasattr(builtins, statement):
        return
    if statement in VERBS[magic]:
        options = verb_parser(magic, statement).option_strings()
        refused = ", ".join(name for name in given if name not in options)
        raise SpecError(
            f"{refused} does not go with %{magic} {statement}, and there is no variable "
            f"{statement}; write %{magic} {statement}"
        )
    near = difflib.get_close_matches(statement, VERBS[magic], n=1)
    if near:
        raise SpecError(f"%{magic} {statement}: there is no such name; did you mean {near[0]}?")


def verb_module(magic: str, verb: str) -> VerbModule:
    """Return the module that runs a verb."""
    return cast(VerbModule, import_module(f"gpumagic.magics.{VERBS[magic][verb].module}"))


def verb_parser(magic: str, verb: str) -> Parser:
    """Return the parser of a verb's options."""
    parser: Parser = options_module(magic).verb_parser(verb)
    return parser


def run_verb(magics: Any, magic: str, verb: str, words: str, *, silent: bool) -> Any:
    """Run a verb and return its result; ``words`` are its options and arguments.

    Raises:
        SpecError: an option or argument does not fit.
    """
    __tracebackhide__ = True
    given = split(words)
    if verb == "limit":
        given = expanded_values(magics.shell, given)
    options = verb_parser(magic, verb).parse_words(given)
    if magics.quiet:
        options.quiet = True
    return verb_module(magic, verb).run(verb, magics, options, silent)
