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
        ("for n in range(3):\n    f(n)", 1),
        ("for n in range(n):\n    f(n)", None),
        ("for i in x:\n    n = i\n    f(n)", 2),
        ("with f() as n:\n    g(n)", 1),
        ("with f(n) as n:\n    g(n)", None),
        ("x = 1\nif (n := 5) > x:\n    f(n)", 2),
        ("f((n := 5), n)", 1),
        ("x = [(n := i) for i in y]\nf(n)", 1),
        ("x = [n for i in y]\nn = 5", None),
        ("n += 1\nf(n)", 1),
        ("f(n)\nn += 1", None),
        ("n: int = 5\nf(n)", 1),
        ("n: int\nf(n)", None),
        ("(a, n), b = x\nf(n)", 1),
        ("def n(): pass\nf(n)", 1),
        ("class n: pass", 1),
        ("def f(): return n\nn = 5", None),
        ("import n", 1),
        ("import n.a\nf(n)", 1),
        ("import a as n", 1),
        ("from a import n, b", 1),
        ("import a.n\nf(n)", None),
        ("try:\n    n = 5\nfinally:\n    f(n)", 2),
        ("try:\n    f(n)\nexcept E:\n    n = 5", None),
        ("x and (n := 5)\nf(n)", None),
        ("f('n')\nn = 5", None),
        ("x = None\nn = 5\nf(n)", 2),
    ],
)
def test_a_cell_that_sets_it_itself(cell: str, line: int | None) -> None:
    assert line_that_sets(ast.parse(cell), "n") == line
