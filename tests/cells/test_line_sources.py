"""The code whose lines are traced: of a cell, and of functions by their names."""

from __future__ import annotations

import ast
import functools
import linecache
import os
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from gpumagic.cells.compile import compile_cell
from gpumagic.cells.line_sources import (
    Inline,
    cell_source,
    find_code,
    function_source,
    selected_sources,
    with_inline,
)
from gpumagic.errors import SpecError


class Net:
    """Traced as a module of torch's is: by its ``forward``."""

    def forward(self, x: Any) -> Any:
        return x

    @property
    def size(self) -> int:
        return 1


def test_what_may_be_named() -> None:
    @functools.lru_cache
    def cached() -> None: ...

    code = Net.forward.__code__
    for found in (Net(), Net.forward, Net().forward, functools.partial(Net.forward, None)):
        assert function_source("x", found).codes == (code,)
    assert function_source("x", vars(Net)["size"]).codes[0].co_name == "size"
    assert function_source("x", cached).codes[0].co_name == "cached"
    with pytest.raises(ValueError, match="len is no Python function: builtin"):
        function_source("len", len)
    made: dict[str, Any] = {}
    exec("def f():\n    pass", made)
    assert function_source("f", made["f"]).lines


def test_find_code() -> None:
    code = compile("class A:\n    def f(self): pass\ndef f(): pass", "x", "exec")
    assert find_code([code], "A.f").co_firstlineno == 2  # type: ignore[union-attr]
    assert find_code([code], "f").co_firstlineno == 3  # type: ignore[union-attr]
    assert find_code([code], "A.g") is None


def test_a_function_without_source_has_its_numbers() -> None:
    made: dict[str, Any] = {}
    exec("\n\ndef f():\n    x = 1\n    return x", made)
    found = function_source("f", made["f"])
    assert (found.first, found.lines) == (3, ("",) * 3)


@pytest.mark.parametrize("file", ["<string>", "edited.py"])
def test_a_text_of_other_code_is_not_shown(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.13 on, ``python -c`` registers its text for all code from strings."""
    other = "def f():\n" + "    x = 1\n" * (2 if file == "<string>" else 1)
    monkeypatch.setitem(linecache.cache, file, (len(other), None, other.splitlines(True), file))
    made: dict[str, Any] = {}
    exec(compile("def f():\n    x = 1\n    return x", file, "exec"), made)
    assert set(function_source("f", made["f"]).lines) == {""}


def test_the_lines_that_continue_a_statement() -> None:
    text = "a = [\n    1,\n]\nfor i in (\n    a\n):\n    b = (\n        i)\n"
    found = cell_source([], text, 2, ast.parse("\n" + text))
    assert found.lines == tuple(text.splitlines())
    assert found.statements == {3: 2, 4: 2, 6: 5, 7: 5, 9: 8}
    assert {line: ast.unparse(each) for line, each in found.loops.items()} == {5: "a"}


def test_the_lines_above_a_body_and_decorators() -> None:
    text = (
        "@a\n@b(\n  1)\ndef f(\n  x):\n    @c\n    def g(): pass\n"
        "match x:\n  case [\n    1]:\n    pass\n"
        "for i in x: f(\n  i)"
    )
    found = cell_source([], text, 1, ast.parse(text))
    assert found.statements == {2: 1, 3: 1, 4: 1, 5: 1, 7: 6, 9: 8, 10: 8, 13: 12}
    assert not found.loops  # its body is in the same line


def test_comprehensions_and_class_bodies_run_in_the_lines_around_them() -> None:
    text = "x = (i for i in y)\nclass A:\n    z = (i for i in y)\n    def f(self): pass"
    found = list(with_inline(compile(text, "x", "exec")))
    assert [(code.co_name, inline) for code, inline in found] == [
        ("<module>", Inline.FUNCTION),
        ("<genexpr>", Inline.EXPRESSION),
        ("A", Inline.BODY),
        ("<genexpr>", Inline.EXPRESSION),
    ]
    assert all(isinstance(code, CodeType) for code, _ in found)


def test_functions_are_selected_by_the_cells_names(ip: Any) -> None:
    ip.user_ns.update(net=Net(), Net=Net)
    cell = compile_cell(ip, "def own():\n    pass\nown()", header="%%gpumem --lines")
    sources = selected_sources(cell, ["own", "net.forward", "own"])
    assert [source.name for source in sources] == ["cell", "own", "net.forward"]
    assert sources[0].first == 2
    assert sources[1].codes[0].co_firstlineno == 2
    assert sources[2].codes == (Net.forward.__code__,)
    same = selected_sources(cell, ["Net.forward", "net.forward", "net"])
    assert [source.name for source in same] == ["cell", "Net.forward, net.forward, net"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "-f nothing: there is no 'nothing' here"),
        ("str.nothing", "-f str.nothing: type object 'str' has no attribute 'nothing'"),
        ("len", "-f len is no Python function: builtin_function_or_method"),
    ],
)
def test_a_name_that_is_no_function_is_one_line(ip: Any, name: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        selected_sources(compile_cell(ip, "pass"), [name])
    assert str(caught.value) == message


def test_a_body_that_begins_on_the_last_line_of_the_head() -> None:
    text = "if (a\n   .b) > 1: c(\n    d)\nwith a, (\n    b): pass\ndef f(\n    a=1\n): return a"
    tree = ast.parse(text)
    found = cell_source([compile(tree, "<cell>", "exec")], text, 1, tree)
    assert found.statements == {2: 1, 3: 1, 5: 4, 7: 6}


@pytest.mark.parametrize(
    "after",
    [
        "# a comment\ndef f():\n    x = 1\n    return x\n",
        "def f():\n    x = 2\n    return x\n",
        "def g():\n    y = 7\n    return y\n",
        "def f(:\n",
        None,
    ],
)
def test_a_file_that_has_changed_since_the_import(tmp_path: Path, after: str | None) -> None:
    path = tmp_path / "module.py"
    text = "def f():\n    x = 1\n    return x\n"
    path.write_text(text)
    made: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), made)
    source = function_source("f", made["f"])
    assert (source.lines, source.note) == (tuple(text.splitlines()), None)
    if after is None:
        path.unlink()
    else:
        path.write_text(after)
        os.utime(path, (1, 1))
    source = function_source("f", made["f"])
    assert (source.first, set(source.lines), source.statements) == (1, {""}, {})
    said = f"no text of f: {path} has changed since it was imported; reload it"
    assert source.note == (None if after is None else said)
