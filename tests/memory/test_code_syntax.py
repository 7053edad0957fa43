"""Parts of syntax trees: what IPython evaluates in a line, which names code gives a value."""

from __future__ import annotations

import ast
import sys
import types

import pytest

from gpumagic.memory import code_syntax


@pytest.mark.parametrize(
    ("line", "expressions"),
    [
        ("ls -l", []),
        ("echo $n ${m} $$d $a.b", ["n", "m", "a.b"]),
        ("echo {n + 1} {a!r:>{width}} {{n}}", ["n + 1", "a", "width"]),
        ("awk '{print $1}' {", ["print $1"]),
    ],
)
def test_what_ipython_evaluates_in_a_line(line: str, expressions: list[str]) -> None:
    assert [*code_syntax.expressions(line)] == expressions


def test_every_way_to_give_a_name_a_value() -> None:
    source = """
a = (b := 1)
for c, (d, *e) in []: pass
with open('') as f: pass
def g(h, /, i=1, *j, k, **l): global m; m = 1
class n: pass
import o.p, q as r
from s import t as u
try: pass
except OSError as v: pass
match a:
    case [w, *x] | {'y': 1, **z}: pass
del aa
[ab for ab in []]
"""
    names = {*code_syntax.bound_names(ast.parse(source))}
    assert names == {*"abcdefghijklmnoruvwxz", "aa", "ab"}


def test_which_imports_run_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("planted_package")
    package.value = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "planted_package", package)
    assert code_syntax.is_loaded("planted_package")
    assert not code_syntax.is_loaded("planted_package.inside")
    node = ast.parse("from planted_package import value, other").body[0]
    assert isinstance(node, ast.ImportFrom)
    assert code_syntax.imported_from(node, "value") == 3
    assert code_syntax.imported_from(node, "other") is code_syntax.UNKNOWN
    inside = types.ModuleType("planted_package.inside")
    monkeypatch.setitem(sys.modules, "planted_package.inside", inside)
    assert code_syntax.imported_from(node, "inside") is inside
