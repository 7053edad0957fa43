"""The verbs of a magic: when the first word of a line is one, and which module runs it."""

from __future__ import annotations

import argparse
import builtins
import difflib
import keyword
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from gpumagic.errors import SpecError
from gpumagic.magics.parsing import Parser, split

#: The verbs of ``%gpumem``: by verb, the module of this package with ``parser(verb)`` and
#: ``run(verb, magics, options, silent)``.
VERBS = {
    **dict.fromkeys(("on", "off", "log", "plot"), "gpumem.per_cell"),
    **dict.fromkeys(("record", "snapshot", "cells"), "gpumem.history"),
    **dict.fromkeys(("vars", "free", "explain"), "gpumem.holders"),
    "limit": "gpumem.limit",
    **dict.fromkeys(("park", "unpark"), "gpumem.park"),
}

#: What follows a name only in a statement: ``log = 3``, ``log [0]``, ``log - 1``,
#: ``log if x else y``. Not ``-o``, an option, nor ``/tmp/file``, a path.
_OPERATOR = re.compile(
    r"[=(\[{,:+*%@<>|&^!;]|[-/.](\s|$)|[-/]=|//|->|-\d"
    r"|(if|else|and|or|in|is|not\s+in|for)(\s|$)"
)


class VerbModule(Protocol):
    """A module that runs verbs of a magic."""

    def parser(self, verb: str) -> Parser:
        """Return the parser of a verb's options."""

    def run(self, verb: str, magics: Any, options: argparse.Namespace, silent: bool) -> Any:
        """Run a verb and return its result."""


def take_verb(
    options: str, statement: str, verbs: Mapping[str, str] = VERBS
) -> tuple[str, str] | None:
    """Return the verb and the rest of the line; None if ``statement`` begins with no verb.

    ``options`` preceded it; a ``--`` among them says that a statement follows.
    """
    word, _, rest = statement.partition(" ")
    rest = rest.lstrip()
    if word not in verbs or "--" in options.split() or _OPERATOR.match(rest):
        return None
    return word, rest


def check_name(magic: str, statement: str, verbs: Iterable[str], *known: Mapping[str, Any]) -> None:
    """Refuse a statement that is a misspelt verb and the name of no variable.

    Raises:
        SpecError: with the nearest verb.
    """
    if not statement.isidentifier() or keyword.iskeyword(statement):
        return
    if any(statement in names for names in (*known, vars(builtins))):
        return
    near = difflib.get_close_matches(statement, verbs, n=1)
    if near:
        raise SpecError(f"{magic} {statement}: there is no such name; did you mean {near[0]}?")


def verb_module(verb: str, verbs: Mapping[str, str] = VERBS) -> VerbModule:
    """Return the module that parses and runs a verb."""
    return cast(VerbModule, import_module(f"gpumagic.magics.{verbs[verb]}"))


def run_verb(
    magics: Any, verb: str, words: str, *, silent: bool, verbs: Mapping[str, str] = VERBS
) -> Any:
    """Run a verb and return its result; ``words`` are its options and arguments.

    Raises:
        SpecError: an option or argument does not fit.
    """
    __tracebackhide__ = True
    module = verb_module(verb, verbs)
    options = module.parser(verb).parse_words(split(words))
    if magics.quiet:
        options.quiet = True
    return module.run(verb, magics, options, silent)
