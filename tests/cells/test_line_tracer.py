"""Which lines run, and how often, beside the other code that they call."""

from __future__ import annotations

import ast
import contextlib
import sys
from typing import Any

import pytest

from gpumagic.cells.line_sources import cell_source
from gpumagic.cells.line_tracer import LineTracer


def traced(text: str, **names: Any) -> tuple[dict[int, int], LineTracer]:
    """The hits of each line of a cell; what it raises is not raised."""
    tree = ast.parse(text)
    code = compile(tree, "<cell>", "exec")
    source = cell_source([code], text, 1, tree)
    tracer = LineTracer([source], lambda lines: None, object)
    tracer.start()
    failed = True
    try:
        with contextlib.suppress(Exception):
            exec(code, names)
            failed = False
    finally:
        tracer.stop(failed=failed)
    return {line.number: line.hits for line in source.ran()}, tracer


def fails(n: int = 3) -> None:
    if n:
        fails(n - 1)
    raise ValueError


KEPT: list[Exception] = []


def keeps() -> None:
    """Its frame lives on with the exception."""
    try:
        fails()
    except ValueError as error:
        KEPT.append(error)


#: Cells that call other code, which is not traced, and the hits of their lines.
CELLS = {
    "calls": ("f()\nfor i in range(3):\n    f()\nx = 1", {1: 1, 2: 4, 3: 3, 4: 1}),
    "exceptions": (
        "for i in range(2):\n    try:\n        fails()\n    except ValueError:\n        f()\nx = 1",
        {1: 3, 2: 2, 3: 2, 4: 2, 5: 2, 6: 1},
    ),
    "an exception that is kept": (
        "try:\n    fails()\nexcept ValueError as error:\n    kept.append(error)\nx = 1",
        {1: 1, 2: 1, 3: 1, 4: 1, 5: 1},
    ),
    "a callee keeps its exception": (
        "keeps()\nx = 1\nfor i in range(2):\n    f()\ny = 1",
        {1: 1, 2: 1, 3: 3, 4: 2, 5: 1},
    ),
    "suppressed": ("with suppress(ValueError):\n    fails()\nx = 1", {1: 2, 2: 1, 3: 1}),
    "generators": ("g = (f() for i in range(3))\nx = list(g)\ny = 1", {1: 1, 2: 1, 3: 1}),
    "it raises": ("f()\nfails()\nx = 1", {1: 1, 2: 1}),
    "a line that follows itself": ("for i in range(3): f()\nx = 1", {1: 1, 2: 1}),
}


@pytest.mark.parametrize("name", CELLS)
def test_lines_go_on_after_what_they_call(name: str) -> None:
    text, expected = CELLS[name]
    names: dict[str, Any] = {"f": lambda: list(range(3)), "fails": fails, "kept": []}
    hits, tracer = traced(text, suppress=contextlib.suppress, keeps=keeps, **names)
    KEPT.clear()
    assert hits == expected
    assert tracer.note is None
    assert sys.gettrace() is None or hasattr(sys, "monitoring")
