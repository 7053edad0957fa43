"""Docstrings, comments and messages of the package are in plain terms."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.device import ROOT

PACKAGE = ROOT / "gpumagic"
FILES = sorted(PACKAGE.rglob("*.py"))
#: Metaphors, and persons where there is a caller, a user or a process.
UNCLEAR = re.compile(
    r"\b(somebody|someone|nobody|anybody|whoever|"
    r"tells?|told|speaks?|stands?|lies|"
    r"(what|which) becomes of|amounts? to|as it stands|the house|rooms?|doors?)\b",
    re.IGNORECASE,
)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment and string of a file, with the number of its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or token.string[-1:] in ("'", '"'):
            yield token.start[0], token.string


def unclear(source: str) -> list[str]:
    return [
        f"{line}: {match[0]}" for line, text in texts(source) for match in UNCLEAR.finditer(text)
    ]


def first_lines(source: str) -> Iterator[tuple[str, str]]:
    """Yield name and first line of the docstring of each function that is no property."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        docstring = ast.get_docstring(node)
        decorators = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
        if docstring is not None and not decorators & {"property", "cached_property"}:
            yield node.name, docstring.partition("\n")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_texts_are_in_plain_terms(path: Path) -> None:
    assert unclear(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_functions_docstring_begins_with_a_verb(path: Path) -> None:
    nouns = ("A", "An", "The", "Our", "Whether", "What", "How", "Why", "Where", "When", "Whose")
    lines = first_lines(path.read_text(encoding="utf-8"))
    assert [name for name, line in lines if line.split()[0] in nouns] == []


def test_the_check_finds_what_it_is_for() -> None:
    assert unclear("x = 1  # NVML tells it") == ["1: tells"]
    assert unclear('"""Say\nwhat becomes of it."""') == ["1: what becomes of"]
    assert unclear("tell = standing = 1  # bedrooms") == []
