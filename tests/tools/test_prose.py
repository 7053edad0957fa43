"""What the prose of a notebook or a page says about an output is true of that output.

It quotes what it speaks of: in a code span, or in bold as the head of a column. A quote is what
one types or what the cells beside it show; after "no" it is not. Prose that ends in a colon
quotes from the cells below.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest

from gpumagic.errors import SpecError
from gpumagic.magics.commands import MAGICS, grammar_of
from gpumagic.selection.spec import parse
from tests.tools.demo.runner import VIRTUAL_NOTE, notebooks
from tests.tools.docs.pages import cells, has_cells, pages, shown

#: Of other programs and libraries, and of IPython.
NAMES_ELSEWHERE = {"nvidia-smi", "nccl", "notebook_launcher", "Out", "_", "utility", "fail_above"}
_EMPTY = ("", VIRTUAL_NOTE)
_QUOTE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_DENIED = re.compile(r"\b(?:no|not|without)\s+(?:`([^`]+)`|\*\*([^*]+)\*\*)", re.IGNORECASE)


class Shown(NamedTuple):
    """A cell, and what it shows."""

    source: str
    shows: str


class Passage(NamedTuple):
    """Prose, and the cells between it and the prose before and behind it."""

    text: str
    above: Sequence[Shown]
    below: Sequence[Shown]


def steps(path: Path) -> Iterator[str | Shown]:
    """The prose and the cells, in order."""
    if path.suffix == ".ipynb":
        import nbformat

        for cell in nbformat.read(path, as_version=4).cells:
            yield cell.source if cell.cell_type == "markdown" else Shown(cell.source, shown(cell))
    else:
        code, rest = cells(path)
        for each in code:
            yield from (each.before, Shown(each.source, each.output))
        yield rest


def passages(path: Path) -> Iterator[Passage]:
    items = [each for each in steps(path) if isinstance(each, Shown) or each.strip() not in _EMPTY]
    for place, item in enumerate(items):
        if isinstance(item, str):
            above, below = (
                [*takewhile(lambda each: isinstance(each, Shown), part)]
                for part in (reversed(items[:place]), items[place + 1 :])
            )
            prose = re.sub(r"^```.*?^```$", "", item, flags=re.MULTILINE | re.DOTALL)
            yield Passage(prose.strip(), above, below)


def is_typed(quote: str, source: str) -> bool:
    """Whether one types this, in a notebook or in a shell."""
    if quote in NAMES_ELSEWHERE or quote in source or quote.startswith(("%", "-", ".", "$")):
        return True
    if re.fullmatch(r"[A-Z]+(_[A-Z]+)+(=.*)?|(pip|make|jupyter) .*", quote):
        return True
    return is_code(quote) or any(is_argument(quote, magic) for magic in MAGICS)


def is_code(quote: str) -> bool:
    """Whether it is Python: a call, an assignment, or a name that a library has."""
    library, *names = re.sub(r"\(.*", "", quote).split(".")
    if library in ("torch", "numpy", "gpumagic") and names:
        found = importlib.import_module(library)
        for name in names:
            found = getattr(found, name)
        return True
    try:
        (node,) = ast.parse(quote).body
    except (SyntaxError, ValueError):
        return False
    return isinstance(node, ast.Assign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )


def is_argument(quote: str, magic: str) -> bool:
    """Whether it is a verb, with or without its arguments, or a choice of GPUs."""
    verb, *_ = quote.split()
    if magic == "gpu":
        try:
            return bool(parse(quote))
        except SpecError:
            pass
    return verb in grammar_of(magic).forms


def says(cells: Sequence[Shown], quote: str) -> bool:
    """Whether one of the cells shows this, as whole words."""
    text = " ".join(" ".join(each.shows for each in cells).split())
    words = re.escape(" ".join(quote.split()))
    return re.search(rf"(?<![\w.]){words}(?!\w)", text) is not None


def quotes(text: str, pattern: re.Pattern[str] = _QUOTE) -> list[str]:
    return [code or bold for code, bold in pattern.findall(text)]


@pytest.mark.parametrize(
    "path",
    [*notebooks(), *(page for page in pages() if has_cells(page))],
    ids=lambda path: path.stem,
)
def test_what_prose_says_is_shown(path: Path) -> None:
    source = "\n".join(each.source for each in steps(path) if isinstance(each, Shown))
    assert not [why for passage in passages(path) for why in false(passage, source)]


def false(passage: Passage, source: str) -> Iterator[str]:
    """What a passage of a notebook with these sources quotes and should not, or does not quote."""
    text, above, below = passage
    *_, last = text.split("\n\n")
    points_below = last.endswith(":") and any(each.shows for each in below)
    denied = {each for each in quotes(text, _DENIED) if not is_typed(each, source)}
    for quote in quotes(text):
        beside = below if quote in denied and points_below else [*above, *below]
        if quote in denied:
            if says(beside, quote):
                yield f"{quote!r} is shown, against: {last}"
        elif not is_typed(quote, source) and not says(beside, quote):
            yield f"{quote!r} is not shown, and not typed"
    if points_below and not denied:
        typed = "\n".join(each.source for each in below)
        if not any(each in typed or says(below, each) for each in quotes(last)):
            yield f"nothing is quoted from the cells below: {last}"


def test_the_check_finds_what_is_false() -> None:
    cells = [Shown("%%cudatime", "≤ 49.4 ms on cuda:0")]
    for text, expected in (
        ("There is no `≤`:", "is shown"),
        ("The status is `applied`.", "is not shown"),
        ("It is faster now:", "nothing is quoted"),
    ):
        (found,) = false(Passage(text, [], cells), "")
        assert expected in found
    assert not [*false(Passage("No `at least`, but `≤`, on **cuda:0**:", [], cells), "")]
