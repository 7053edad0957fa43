"""The verbs of a magic: when the first word of a line is one."""

from __future__ import annotations

from argparse import Namespace
from inspect import signature
from typing import Any

import pytest

from gpumagic.errors import SpecError
from gpumagic.magics.parsing import MagicLine
from gpumagic.magics.verbs import VERBS, check_name, take_verb, verb_module, verb_parser


@pytest.mark.parametrize(
    ("options", "statement", "found"),
    [
        ("", "log", ("log", "")),
        ("-q", "log -o", ("log", "-o")),
        ("", "snapshot /tmp/file", ("snapshot", "/tmp/file")),
        ("", "free a b", ("free", "a b")),
        ("", "free   --gc", ("free", "--gc")),
        ("", "plot picture.png", ("plot", "picture.png")),
        ("--", "log", None),
        ("", "x = 1", None),
        ("", "logs", None),
        *(
            ("", f"log {rest}", None)
            for rest in ("= 3", "[0]", "(1)", "- 1", "-1", "+= 1", "if x else y", "in x", "/ 2")
        ),
        ("", "log // 2", None),
        ("", "log -> x", None),
        ("", "log . x", None),
        ("", "log; x", None),
    ],
)
def test_a_verb_or_a_statement(options: str, statement: str, found: tuple[str, str] | None) -> None:
    line = MagicLine("", Namespace(), {}, options, statement, statement, silent=False)
    verb = take_verb("gpumem", line)
    assert verb == (None if found is None else (found[0], f"{options} {found[1]}"))


def test_a_negative_number_may_be_an_argument() -> None:
    """It is one where the line is no Python, or where the verb names no variable."""

    def verb(statement: str, *names: str) -> tuple[str, str] | None:
        line = MagicLine("", Namespace(), {}, "", statement, statement, silent=False)
        return take_verb("gpumem", line, names)

    assert verb("limit -1GiB", "limit") == ("limit", " -1GiB")
    assert verb("limit -1") == ("limit", " -1")
    assert verb("limit -1", "limit") is None
    assert verb("log = -1") is None


def test_a_misspelt_verb_is_refused() -> None:
    with pytest.raises(SpecError) as raised:
        check_name("gpumem", "snapsht")
    assert str(raised.value) == ("%gpumem snapsht: there is no such name; did you mean snapshot?")


@pytest.mark.parametrize(
    ("statement", "known"),
    [
        ("help", {"help": 1}),
        ("free", {"free": 1}),
        ("snapsht", {"snapsht": 1}),  # a variable
        ("vars", {}),  # a function of Python's
        ("snapsht()", {}),  # no name
        ("for", {}),
        ("something_else", {}),
    ],
)
def test_other_statements_are_not_refused(statement: str, known: dict[str, int]) -> None:
    check_name("gpumem", statement, {}, known)


@pytest.mark.parametrize(
    ("magic", "verb"), [(magic, verb) for magic, verbs in VERBS.items() for verb in verbs]
)
def test_every_verb_has_a_module_that_runs_it(magic: str, verb: str) -> None:
    module: Any = verb_module(magic, verb)
    assert {"-o", "-v", "-q"} <= {*verb_parser(magic, verb).option_strings()}
    assert [*signature(module.run).parameters] == ["verb", "magics", "options", "silent"]
