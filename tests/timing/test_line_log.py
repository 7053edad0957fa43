"""Which lines ran when."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest

from gpumagic.cells.line_sources import Source, cell_source, defined_source, function_source
from gpumagic.cells.line_tracer import Line
from gpumagic.timing import line_log
from gpumagic.timing.line_log import LineLog


class Host:
    """A clock that goes when it is told to, and calls that note which lines run at their time."""

    def __init__(self) -> None:
        self.now = 10.0
        self.calls: list[tuple[str, float]] = []

    def perf_counter(self) -> float:
        return self.now

    def call(self, name: str) -> None:
        self.now += 1.0
        self.calls.append((name, self.now))
        self.now += 1.0


def traced_source(function: Any, code: CodeType) -> Source:
    """The source of a function, or of the one with this name in the cell."""
    if not isinstance(function, str):
        return function_source(function.__name__, function)
    found = defined_source([code], function)
    assert found is not None
    return found


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, list[tuple[Line, ...]]]]:
    """``logged(cell, functions, **names)``: the lines that ran at each ``call(name)``."""

    def run(
        source: str, functions: tuple[Any, ...] = (), **names: Any
    ) -> dict[str, list[tuple[Line, ...]]]:
        host = names.setdefault("host", Host())
        monkeypatch.setattr(line_log, "perf_counter", host.perf_counter)
        code = compile("\n" + source, "<cell>", "exec")
        sources = [cell_source([code], source, 2)]
        sources += [traced_source(each, code) for each in functions]
        log = LineLog(sources)
        names["call"] = host.call
        try:
            with log:
                exec(code, names)
        except ZeroDivisionError:
            pass
        assert log.note is None
        assert log.at(9.0) == (), "before it began"
        assert log.at(host.now + 1) == (), "after it ended"
        found: dict[str, list[tuple[Line, ...]]] = {}
        for name, at in host.calls:
            found.setdefault(name, []).append(log.at(at))
        return found

    return run


def of_cell(*numbers: int) -> list[tuple[Line, ...]]:
    return [(Line(0, number),) for number in numbers]


def test_lines(logged: Any) -> None:
    found = logged("call('a')\nfor i in 'xy':\n    call(i)\ncall('b'); call('a')")
    assert found == {
        "a": of_cell(2, 5),
        "x": of_cell(4),
        "y": of_cell(4),
        "b": of_cell(5),
    }


def test_functions_and_recursions(logged: Any) -> None:
    host = Host()

    def down(n: int) -> None:
        host.call(f"down {n}")
        if n:
            down(n - 1)

    first = down.__code__.co_firstlineno + 1
    found = logged("down(1)\ncall('after')", (down,), down=down, host=host)
    assert found["down 1"] == [(Line(0, 2), Line(1, first))]
    assert found["down 0"] == [(Line(0, 2), Line(1, first))]
    assert found["after"] == of_cell(3)


def test_the_line_of_a_source_is_the_innermost_calls(logged: Any) -> None:
    """A generator of the cell's counts to the line that runs it."""
    cell = "numbers = (\n    call('inner') for i in range(2)\n)\nnext(numbers)\nrun(numbers)"
    host = Host()

    def run(numbers: Any) -> None:
        host.call("before")
        next(numbers)
        host.call("after")

    first = run.__code__.co_firstlineno + 1
    found = logged(cell, (run,), run=run, host=host)
    assert found["before"] == [(Line(0, 6), Line(1, first))]
    assert found["inner"] == [(Line(0, 5),), (Line(0, 6), Line(1, first + 1))]
    assert found["after"] == [(Line(0, 6), Line(1, first + 2))]


def test_a_line_that_waits_is_current_while_its_source_does_not_run(logged: Any) -> None:
    cell = (
        "import asyncio\nasync def other():\n    call('other')\nasync def step():\n"
        "    call('step')\n    await asyncio.sleep(0)\nasync def main():\n"
        "    await asyncio.gather(step(), step(), other())\nasyncio.run(main())\ncall('after')"
    )
    found = logged(cell, ("step",))
    assert found == {
        "step": [(Line(0, 10), Line(1, 6))] * 2,
        "other": [(Line(0, 10), Line(1, 7))],
        "after": of_cell(11),
    }


def test_what_other_threads_do_is_the_lines_time(logged: Any) -> None:
    import threading

    cell = "t = threading.Thread(target=call, args=('there',))\nt.start(); t.join()\ncall('here')"
    found = logged(cell, threading=threading)
    assert found == {"there": of_cell(3), "here": of_cell(4)}


def test_a_line_that_raises_ends(logged: Any) -> None:
    found = logged("try:\n    1 / 0\nexcept ZeroDivisionError:\n    call('a')\ncall('b')\n1 / 0")
    assert found == {"a": of_cell(5), "b": of_cell(6)}


def test_nothing_is_left_behind(logged: Any) -> None:
    logged("call('a')")
    assert sys.gettrace() is None
    log = LineLog([cell_source([compile("1", "<cell>", "exec")], "1", 1)])
    with log:
        time.sleep(0)
    assert log.at(time.perf_counter()) == ()


def test_a_tracer_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LineLog([cell_source([compile("1", "<cell>", "exec")], "1", 1)])

    def refuse() -> None:
        raise ValueError("tool 3 is in use")

    monkeypatch.setattr(log._tracer, "start", refuse)
    with log:
        pass
    assert log.note == "ValueError: tool 3 is in use"
