"""Whether a cell uses a variable: read in its code and in the notebook's functions."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from gpumagic.cells.name_use import line_that_sets, may_use


@pytest.mark.parametrize(
    ("cell", "uses"),
    [
        ("x = f(n)", True),
        ("x = [n for _ in y]", True),
        ("n += 1", True),
        ("exec('f(n)')", True),
        ("del n", True),
        ("x = m", False),
        ("n = 3\nx = m", False),
        ("x.n = 1", False),
    ],
)
def test_a_cell(cell: str, uses: bool) -> None:
    assert may_use(ast.parse(cell), "n", {}) is uses


@pytest.mark.parametrize(
    "definition",
    [
        "def f(): return n",
        "f = lambda: (lambda: n)()",
        "class A:\n    def f(self): return n",
        "class A:\n    @staticmethod\n    def f(): return n",
        "def f(): return eval('n + 1')",
    ],
)
def test_functions_of_the_notebook(definition: str) -> None:
    names: dict[str, Any] = {}
    exec(definition, names)
    assert may_use(ast.parse("f()"), "n", names)
    assert not may_use(ast.parse("f()"), "other", names)
    assert not may_use(ast.parse("f()"), "n", {**names})  # their globals are others


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("x = 1\nn = 5\nf(n)", 2),
        ("n = n + 1", None),
        ("f(n)\nn = 5", None),
        ("if x:\n    n = 5\nf(n)", None),
        ("x = y = n = 1", 1),
    ],
)
def test_a_cell_that_sets_it_itself(cell: str, line: int | None) -> None:
    assert line_that_sets(ast.parse(cell), "n") == line
