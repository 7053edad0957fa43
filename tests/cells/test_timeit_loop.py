"""`gpumagic.cells.timeit_loop`: a statement compiled into a function with a loop."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpumagic.cells.timeit_loop import compile_callable, compile_statement


def test_the_statement_runs_so_many_times_after_the_setup() -> None:
    ran: list[str] = []
    loop = compile_statement("ran.append(x)", {"ran": ran}, setup="x = 'body'\nran.append('setup')")
    for count, expected in ((3, ["setup", *["body"] * 3]), (0, ["setup"])):
        ran.clear()
        loop.run(count)
        assert ran == expected


def test_only_the_loop_is_inside_the_clock() -> None:
    events: list[str] = []

    @contextmanager
    def clock() -> Iterator[None]:
        events.append("start")
        yield
        events.append("stop")

    loop = compile_statement("note('body')", {"note": events.append}, setup="note('setup')")
    loop.run(2, clock())
    assert events == ["setup", "start", "body", "body", "stop"]


def test_variables_stay_in_the_function() -> None:
    namespace: dict[str, Any] = {"known": 1}
    compile_statement("made = known + 1", namespace).run(1)
    assert {*namespace} == {"known", "__builtins__"}


@pytest.mark.parametrize("source", ["return 1", "yield 1", "await x", "1 +", "break"])
def test_what_is_no_statement_of_a_module_is_refused(source: str) -> None:
    for statement, setup in ((source, ""), ("pass", source)):
        with pytest.raises(SyntaxError):
            compile_statement(statement, {}, setup)


def test_a_traceback_has_the_lines_of_the_statement() -> None:
    loop = compile_statement("x = 1\nx / 0", {})
    with pytest.raises(ZeroDivisionError) as raised:
        loop.run(1)
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.name) == ("<cudatime>", 2, "<module>")


@pytest.mark.parametrize("setup", ["function.__self__.append('text')", "a callable"])
def test_a_callable(setup: str) -> None:
    called: list[Any] = []
    before = "text" if setup != "a callable" else "called"
    chosen: Any = setup if before == "text" else lambda: called.append("called")
    compile_callable(called.sort, chosen).run(2)
    assert called == [before]
