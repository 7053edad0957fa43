"""`gpumagic.cells.compile`: cells compiled as IPython does, apart from being run."""

from __future__ import annotations

import ast
import linecache
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from gpumagic.cells.compile import compile_cell
from gpumagic.cells.coroutines import run_sync
from gpumagic.cells.timeit_loop import compile_loop
from tests.support.shells import Ran


def run(cell: Any) -> Any:
    return run_sync(cell.run(nullcontext()))


@pytest.mark.parametrize(
    ("source", "value", "silent"),
    [
        ("1 + 1", 2, False),
        ("1 + 1;", None, True),
        ("x = 3\nx + 1", 4, False),
        ("x = 3", None, False),
        ("'a;'", "a;", False),
        ("1  # not silent;", 1, False),
        ("", None, False),
        ("!true\n5", 5, False),
        ("for i in range(3):\n    pass\ni", 2, False),
        ("    1 + 1", 2, False),
        ("\tx = 3\n\tx + 1;", None, True),
    ],
)
def test_the_value_of_a_cell(ip: Any, source: str, value: Any, silent: bool) -> None:
    cell = compile_cell(ip, source)
    assert (run(cell), cell.silent, cell.is_async) == (value, silent, False)
    assert run(cell) == value  # any number of times
    assert cell.compile_time > 0


def test_variables_are_those_of_the_notebook(ip: Any) -> None:
    run(compile_cell(ip, "made = 7"))
    assert ip.user_ns["made"] == 7
    local: dict[str, Any] = {"here": 1}
    assert run(compile_cell(ip, "there = here + 1\nthere", local_ns=local)) == 2
    assert local["there"] == 2
    assert "there" not in ip.user_ns


@pytest.mark.parametrize(("header", "line"), [(None, 2), ("%%cudatime -n 3", 3)])
def test_lines_are_counted_as_in_the_notebook(ip: Any, header: str | None, line: int) -> None:
    cell = compile_cell(ip, "x = 0\n1 / x", header=header)
    assert cell.first_line == line - 1
    with pytest.raises(ZeroDivisionError) as raised:
        run(cell)
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.lineno, last.line) == (line, "1 / x")
    assert linecache.getline(last.filename, 1).rstrip() == (header or "x = 0")


def test_lines_below_what_ipython_shortens(ip: Any) -> None:
    """Blank lines above a cell are removed, a continued ``!`` line is joined."""
    for source, line in (("\n\n1 / 0", 3), ("!echo \\\n  a > /dev/null\n1 / 0", 3)):
        with pytest.raises(ZeroDivisionError) as raised:
            run(compile_cell(ip, source))
        assert traceback.extract_tb(raised.value.__traceback__)[-1].lineno == line


class Doubled(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.copy_location(ast.Constant(node.value * 2), node)


def test_transformers_of_the_user_apply(ip: Any) -> None:
    ip.ast_transformers.append(Doubled())
    try:
        assert run(compile_cell(ip, "3")) == 6
    finally:
        ip.ast_transformers.clear()


@pytest.mark.parametrize("source", ["1 +", "return 1", "yield 1", "x = = 1"])
def test_a_syntax_error_is_the_cells(ip: Any, source: str) -> None:
    for compiled in (compile_cell, compile_loop):
        with pytest.raises(SyntaxError):
            compiled(ip, source)


def test_a_loop_has_variables_of_its_own(ip: Any) -> None:
    ip.user_ns["seen"] = []
    loop = compile_loop(ip, "local = 1\nseen.append(local + start)", setup="start = 5")
    loop.run(3)
    assert ip.user_ns["seen"] == [6, 6, 6]
    assert not {"local", "start"} & {*ip.user_ns}
    assert loop.compile_time > 0
    inside = {"seen": [], "other": 2}
    compile_loop(ip, "seen.append(other)", local_ns=inside).run(1)
    assert inside["seen"] == [2]
    assert "other" not in ip.user_ns


@pytest.mark.parametrize(
    "call",
    [
        "get_ipython().run_cell_magic('cudatime', '-q', body)",
        "get_ipython().run_cell_magic('cudatime', '-q', cell=body)",
        "get_ipython().run_cell_magic('cudatime', line, body[:-1] + '')\nafter = 1",
    ],
)
def test_a_call_that_the_user_has_written(ip: Any, run_cell: Callable[..., Ran], call: str) -> None:
    ip.user_ns.update(body="found = 7\n", line="-q")
    ran = run_cell(call)
    assert (ran.error, ip.user_ns["found"], ran.stderr) == (None, 7, "")


def test_a_call_that_is_no_code(run_cell: Callable[..., Ran]) -> None:
    ran = run_cell("get_ipython().run_cell_magic('cudatime', '-q', body", raising=False)
    assert isinstance(ran.error, SyntaxError)
