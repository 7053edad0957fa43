"""Code is traced line by line: the counter is called where one line ends and the next begins."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from gpumagic.cells.line_sources import Source, cell_source, code_source
from gpumagic.cells.line_tracer import Line, LineTracer
from gpumagic.cells.pauses import Left


class Ticks:
    """A counter of ticks, which the traced code makes by ``tick(n)``."""

    def __init__(self) -> None:
        self.now = 0
        self.lines: dict[Line, int] = {}
        self.recursive: list[Line] = []
        self.statements = 0
        self.readings = 0
        self.calls: list[tuple[dict[str, int], dict[str, int] | None]] = []
        self.broken = False
        #: The lines that have begun, and whether again.
        self.begun: list[tuple[int, bool]] = []
        #: How calls were left.
        self.left: list[Left] = []

    def tick(self, count: int) -> int:
        self.now += count
        return count

    def new_record(self) -> dict[str, int]:
        return {}

    def read(self, running: dict[str, int] | None) -> None:
        if self.broken:
            raise RuntimeError("no counters\nmore")
        self.readings += 1

    def begin_statement(self, call: dict[str, int]) -> None:
        self.statements += 1

    def begin_line(self, call: dict[str, int], line: Line, *, again: bool) -> None:
        call["start"] = self.now
        self.begun.append((line.number, again))

    def end_line(self, call: dict[str, int], line: Line, *, recursive: bool) -> None:
        if recursive:
            self.recursive.append(line)
        else:
            self.lines[line] = self.lines.get(line, 0) + self.now - call["start"]

    def end_call(self, call: dict[str, int], caller: dict[str, int] | None, how: Left) -> None:
        self.calls.append((call, caller))
        self.left.append(how)

    def of(self, source: int = 0) -> dict[int, int]:
        """The ticks by line, of lines with any."""
        found = {line.number: n for line, n in self.lines.items() if line.source == source and n}
        return dict(sorted(found.items()))


def traced(
    text: str, functions: tuple[str, ...] = (), *, by_statement: bool = False, **names: Any
) -> tuple[Ticks, Any]:
    """Run ``text`` as a cell from line 1 on, traced with the functions in ``names``."""
    ticks = Ticks()
    tree = ast.parse(text)
    code = compile(tree, "<cell>", "exec")
    sources: list[Source] = [cell_source([code], text, 1, tree if by_statement else None)]
    sources += [code_source(name, names[name].__code__) for name in functions]
    tracer = LineTracer(sources, ticks, by_statement=by_statement)
    before = sys.gettrace()
    tracer.start()
    try:
        with contextlib.suppress(ValueError):
            exec(code, {"tick": ticks.tick, "sys": sys, **names})
    finally:
        tracer.stop()
    assert sys.gettrace() == before
    return ticks, tracer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tick(1)\ntick(2); tick(3)\nx = 0", {1: 1, 2: 5}),
        ("for i in range(3):\n    tick(1)\n    tick(10)", {2: 3, 3: 30}),
        ("x = [\n    tick(1)\n    for i in range(3)\n]", {2: 3}),
        ("x = dict(\n    a=tick(1),\n    b=tick(2),\n)", {2: 1, 3: 2}),
        ("def f():\n    tick(5)\ntick(1)\nf()", {3: 1, 4: 5}),
        ("class C:\n    a = tick(1)\n    b = tick(2)", {2: 1, 3: 2}),
        ("x = (tick(1)\n     for i in range(2))\nlist(x)", {1: 2}),
    ],
    ids=["lines", "loop", "comprehension", "call", "function", "class", "generator"],
)
def test_each_line_has_what_happens_in_it(text: str, expected: dict[int, int]) -> None:
    ticks, tracer = traced(text)
    assert ticks.of() == expected
    assert tracer.ran == {0}
    assert tracer.notes == []


def test_lines_of_a_function_are_counted_there_and_at_its_call() -> None:
    def step(tick: Callable[[int], int]) -> None:
        tick(1)
        tick(2)

    first = step.__code__.co_firstlineno
    ticks, tracer = traced("step(tick)\ntick(4)", ("step",), step=step)
    assert ticks.of() == {1: 3, 2: 4}
    assert ticks.of(1) == {first + 1: 1, first + 2: 2}
    assert tracer.ran == {0, 1}
    _, caller = ticks.calls[0]
    assert caller is not None
    assert ticks.calls[-1] == (caller, None)


def test_a_recursion_is_counted_by_its_outermost_call() -> None:
    def down(n: int, tick: Callable[[int], int]) -> None:
        if n:
            down(n - 1, tick)
        tick(1)

    first = down.__code__.co_firstlineno
    ticks, _ = traced("down(2, tick)", ("down",), down=down)
    assert ticks.of(1)[first + 2] == 2
    assert Line(1, first + 2) in ticks.recursive


def test_a_generator_goes_on_with_the_record_of_its_call() -> None:
    def numbers(tick: Callable[[int], int]) -> Any:
        tick(1)
        yield 1
        tick(2)

    first = numbers.__code__.co_firstlineno
    ticks, _ = traced(
        "n = numbers(tick)\nnext(n)\ntick(10)\nlist(n)", ("numbers",), numbers=numbers
    )
    assert ticks.of(1) == {first + 1: 1, first + 3: 2}
    assert ticks.of() == {2: 1, 3: 10, 4: 2}
    records = [call for call, caller in ticks.calls if caller is not None]
    assert len(records) == 2
    assert records[0] is records[1]


def test_an_exception_ends_the_calls_that_it_passes() -> None:
    def fail(tick: Callable[[int], int]) -> None:
        tick(1)
        raise ValueError

    text = "try:\n    fail(tick)\nexcept ValueError:\n    tick(2)"
    ticks, _ = traced(text, ("fail",), fail=fail)
    assert ticks.of() == {2: 1, 4: 2}


def test_an_error_of_the_counter_ends_the_tracing_with_a_note() -> None:
    ticks = Ticks()
    ticks.broken = True
    code = compile("x = 6 * 7", "<cell>", "exec")
    tracer = LineTracer([cell_source([code], "x = 6 * 7", 1)], ticks)
    space: dict[str, Any] = {}
    tracer.start()
    exec(code, space)
    tracer.stop()
    assert space["x"] == 42
    assert tracer.notes == ["lines are missing after an error (RuntimeError: no counters)"]


def test_an_earlier_trace_function_goes_on_and_a_later_one_is_noted() -> None:
    seen: list[int] = []

    def theirs(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_code.co_filename == "<cell>":
            seen.append(frame.f_lineno)
        return theirs

    before = sys.gettrace()
    sys.settrace(theirs)
    try:
        ticks, _ = traced("tick(1)\ntick(2)")
        assert sys.gettrace() is theirs
    finally:
        sys.settrace(before)
    assert ticks.of() == {1: 1, 2: 2}
    assert seen == [1, 2]
    try:
        ticks = Ticks()
        code = compile("tick(1)\nsys.settrace(None)\ntick(2)", "<cell>", "exec")
        tracer = LineTracer([cell_source([code], "", 1)], ticks)
        tracer.start()
        exec(code, {"tick": ticks.tick, "sys": sys})
        tracer.stop()
    finally:
        sys.settrace(before)
    if hasattr(sys, "monitoring"):
        assert (ticks.of(), tracer.notes) == ({1: 1, 3: 2}, [])
    else:
        assert "the trace function was removed or replaced" in tracer.notes[0]


def test_the_lines_of_a_statement_begin_it_once() -> None:
    text = "a = dict(\n    x=tick(1),\n    y=tick(2),\n)\nb = tick(3)"
    code = compile(text, "<cell>", "exec")
    begun = []
    for tree in (ast.parse(text), None):  # without a tree each line is a statement
        ticks = Ticks()
        tracer = LineTracer([cell_source([code], text, 1, tree)], ticks)
        tracer.start()
        try:
            exec(code, {"tick": ticks.tick})
        finally:
            tracer.stop()
        assert ticks.of() == {2: 1, 3: 2, 5: 3}
        begun.append(ticks.statements)
    assert begun[1] - begun[0] >= 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = dict(\n    a=tick(1),\n    b=tick(2),\n)\ntick(4)", {1: 3, 5: 4}),
        ("x = [\n    tick(1)\n    for i in range(3)\n]", {1: 3}),
        ("for i in (\n    1, tick(2)\n):\n    x = (\n        tick(1)\n    )", {1: 2, 4: 2}),
        ("def deco(f):\n    tick(3)\n@deco\ndef f():\n    pass", {3: 3}),
        (
            "try:\n    1 / 0\nexcept (\n    tick(1) and OSError,\n    ArithmeticError,\n"
            "):\n    tick(2)",
            {3: 1, 7: 2},
        ),
    ],
    ids=["call", "comprehension", "loop", "decorator", "handler"],
)
def test_the_lines_of_a_statement_count_as_its_first(text: str, expected: dict[int, int]) -> None:
    ticks, _ = traced(text, by_statement=True)
    assert ticks.of() == expected


def test_a_line_goes_on_after_what_runs_in_it() -> None:
    def numbers() -> Any:
        yield 1
        yield 2

    first = numbers.__code__.co_firstlineno
    ticks, _ = traced("x = [\n    i\n    for i in numbers()\n]", ("numbers",), numbers=numbers)
    assert (first + 1, True) in ticks.begun

    async def waits() -> None:
        await Turn()

    class Turn:
        def __await__(self) -> Any:
            yield

    first = waits.__code__.co_firstlineno
    text = "c = waits()\nc.send(None)\ntry:\n    c.send(None)\nexcept StopIteration:\n    pass"
    ticks, _ = traced(text, ("waits",), waits=waits)
    assert [each for each in ticks.begun if each[0] == first + 1] == [
        (first + 1, False),
        (first + 1, True),
    ]
    assert ticks.left == [Left.AWAITS, Left.ENDED, Left.ENDED]
    text = "c = waits()\nc.send(None)\ntry:\n    c.throw(KeyError)\nexcept KeyError:\n    pass"
    ticks, _ = traced(text, ("waits",), waits=waits)
    assert [each for each in ticks.begun if each[0] == first + 1] == [
        (first + 1, False),
        (first + 1, True),
    ]


def _called(tick: Callable[[int], int]) -> None:
    tick(1)
    raise ValueError


@pytest.mark.parametrize(
    ("text", "expected", "is_skipped"),
    [
        ("try:\n    f(tick)\nexcept ValueError:\n    tick(2)", {2: 1, 4: 2}, False),
        ("tick(2)\nf(tick)\ntick(4)", {1: 2, 2: 1}, True),
        ("x = [\n    f(tick) for i in range(2)\n]", {1: 1}, True),
        ("x = (tick(i) for i in (1, 2))\ng(x)\ntick(4)", {2: 3, 3: 4}, True),
        ("sum(tick(1) or i for i in (1, 2))\ntick(4)", {1: 2, 2: 4}, True),
        ("class C:\n    tick(2)\n    f(tick)\ntick(4)", {2: 2, 3: 1}, True),
    ],
    ids=["handled", "not handled", "in a comprehension", "a generator", "used up", "a class"],
)
def test_what_lines_call(text: str, expected: dict[int, int], is_skipped: bool) -> None:
    """Traced or not, all lines have their ticks."""

    def g(ticks: Any) -> None:
        for _ in ticks:
            pass

    ticks, tracer = traced(text, by_statement=True, f=_called, g=g)
    assert ticks.of() == expected
    assert tracer.notes == []
    if hasattr(sys, "monitoring"):
        assert (tracer.skipped, tracer.slowed) == (0, 0)
    elif sys.gettrace() is None:
        assert (tracer.skipped > 0) == is_skipped


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_process_counts_nothing() -> None:
    text = (
        "reader, writer = os.pipe()\n"
        "with warnings.catch_warnings():\n"
        "    warnings.simplefilter('ignore')\n"
        "    child = os.fork()\n"
        "if child == 0:\n"
        "    before = ticks.readings\n"
        "    for i in range(3):\n"
        "        tick(1)\n"
        "    os.write(writer, str(ticks.readings - before).encode())\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "counted = os.read(reader, 10)\n"
        "os.close(reader), os.close(writer)\n"
        "tick(5)"
    )
    space: dict[str, Any] = {}
    ticks = Ticks()
    space.update(os=os, warnings=warnings, ticks=ticks, tick=ticks.tick)
    tracer = LineTracer([cell_source([code := compile(text, "<cell>", "exec")], text, 1)], ticks)
    tracer.start()
    try:
        exec(code, space)
    finally:
        tracer.stop()
    assert space["counted"] == b"0"
    assert ticks.of() == {14: 5}
    assert (tracer.is_forked, tracer.notes) == (False, [])
