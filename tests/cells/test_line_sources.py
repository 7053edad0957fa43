"""The code whose lines are traced: of a cell, and of functions by their names."""

from __future__ import annotations

import ast
import functools
import linecache
from typing import Any

import pytest

from gpumagic.cells.compile import compile_cell
from gpumagic.cells.line_sources import cell_source, function_source, selected_sources
from gpumagic.errors import SpecError


class Net:
    """Traced as a module of torch's is: by its ``forward``."""

    def __init__(self) -> None:
        self.func = len

    def forward(self, x: Any) -> Any:
        return x

    @property
    def size(self) -> int:
        return 1


@functools.lru_cache
def cached() -> None: ...


def test_what_may_be_named(ip: Any) -> None:
    named: dict[str, Any] = {
        "net": Net(),
        "forward": Net().forward,
        "cached": cached,
        "compiled": lambda *inputs: None,
    }
    named["compiled"].__wrapped__ = Net()  # as torch.compile wraps the forward of a module
    ip.user_ns.update(named, Net=Net)
    cell = compile_cell(
        ip, "def own():\n    pass\nclass A:\n    def f(self): pass", header="%%gpumem --lines"
    )
    names = ["own", "A.f", "net", "Net.forward", "forward", "compiled", "cached", "own"]
    whole, own, of_class, net, once = selected_sources(cell, names)
    assert (whole.name, whole.first) == ("cell", 2)
    assert [source.codes[0].co_firstlineno for source in (own, of_class)] == [2, 5]
    assert net.codes == (Net.forward.__code__,)
    assert net.name == "net", "its lines are traced once"
    assert once.codes == (cached.__wrapped__.__code__,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "-f nothing: there is no 'nothing' here before this cell runs; define it in "),
        ("str.nothing", "-f str.nothing: type object 'str' has no attribute 'nothing'"),
        ("len", "-f len is no Python function: builtin_function_or_method"),
        ("Net", "-f Net is a class; name one of its functions, as Net.forward"),
        ("A", "-f A is a class; name one of its functions"),
    ],
)
def test_a_name_that_is_no_function_is_one_line(ip: Any, name: str, message: str) -> None:
    ip.user_ns["Net"] = Net
    with pytest.raises(SpecError) as caught:
        selected_sources(compile_cell(ip, "class A:\n    def f(self): pass"), [name])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "firsts"),
    [
        (
            "a = [\n    1,\n]\nfor i in (\n    a\n):\n    b = (\n        i)",
            [1, 1, 1, 4, 4, 4, 7, 7],
        ),
        ("@a\n@b(\n  1)\ndef f(\n  x):\n    @c\n    def g(): pass", [1, 1, 1, 1, 1, 6, 6]),
        ("match x:\n  case [\n    1]:\n    pass\nfor i in x:\n  f(\n  i)", [1, 2, 2, 4, 5, 6, 6]),
        ("while x: f(\n  i)", [1, 1]),
        (
            "try:\n    a\nexcept (\n    B):\n    c\nelse:\n    d\nfinally:\n    e",
            [1, 2, 3, 3, 5, 6, 7, 8, 9],
        ),
        ('s = """\nx = 1\n"""\ny = 2', [1, 1, 1, 4]),
    ],
)
def test_each_line_of_a_statement_stands_for_its_first(text: str, firsts: list[int]) -> None:
    found = cell_source([], text, 1, ast.parse(text))
    rows = text.splitlines()
    assert found.text == tuple(rows)
    assert [found.lines[i].number for i in range(1, len(rows) + 1)][: len(firsts)] == firsts
    assert not cell_source([], (one := "for i in x: f(i)"), 1, ast.parse(one)).lines[1].loop
    loops = {line.number for line in found.lines.values() if line.loop}
    assert loops == {place for place, row in enumerate(rows, 1) if row.startswith("for")}


def test_a_method_has_the_numbers_of_its_file() -> None:
    code = Net.forward.__code__
    found = function_source("x", code)
    assert found.text == ("    def forward(self, x: Any) -> Any:", "        return x")
    assert found.lines[code.co_firstlineno + 1].number == code.co_firstlineno + 1


@pytest.mark.parametrize("file", ["<string>", "edited.py"])
def test_a_text_of_other_code_is_not_shown(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.13 on, ``python -c`` registers its text for all code from strings."""
    other = "def f():\n" + "    x = 1\n" * (2 if file == "<string>" else 1)
    monkeypatch.setitem(linecache.cache, file, (len(other), None, other.splitlines(True), file))
    made: dict[str, Any] = {}
    exec(compile("\n\ndef f():\n    x = 1\n    return x", file, "exec"), made)
    found = function_source("f", made["f"].__code__)
    assert (found.first, found.text) == (3, ("",) * 3)


def test_the_text_beside_the_times_holds_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """``%autoreload`` compiles a changed function by itself: its lines begin with 1."""
    text = "import torch\nCACHE = {}\nclass Net:\n    pass\ndef work():\n    x = 1\n    y = 2\n"
    monkeypatch.setitem(linecache.cache, "mm.py", (len(text), None, text.splitlines(True), "mm.py"))
    made: dict[str, Any] = {}
    exec(compile("def work():\n    x = 1\n    y = 2\n", "mm.py", "exec"), made)
    assert function_source("mm.work", made["work"].__code__).text == ("",) * 3
