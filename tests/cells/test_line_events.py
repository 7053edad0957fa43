"""Events of traced code, from each source of them that this Python has."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from gpumagic.cells import line_events
from gpumagic.cells.pauses import Left

SOURCES = ["trace", *(["monitoring"] if hasattr(sys, "monitoring") else [])]
HOW = {how.name.lower() for how in Left}


class Record:
    """The events by the name of the code, as text."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def enter(self, frame: FrameType) -> None:
        self.events.append(f"enter {frame.f_code.co_name}")

    def to_line(self, frame: FrameType, line: int) -> None:
        self.events.append(f"{line - frame.f_code.co_firstlineno}")

    def leave(self, frame: FrameType, how: Left) -> None:
        self.events.append(f"{how.name.lower()} {frame.f_code.co_name}")

    def may_skip(self, caller: FrameType) -> bool:
        return True


@pytest.fixture(params=SOURCES)
def record(request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """``record(call, *functions)``: the events while it is called, of these functions."""

    def run(call: Callable[[], Any], *functions: Any) -> list[str]:
        codes = {id(function.__code__): function.__code__ for function in functions}
        found, made = Record(), None
        if request.param == "trace":
            made = line_events.TraceEvents(codes, found)
        else:
            tool = line_events._free_tool()
            assert tool is not None
            made = line_events.MonitoringEvents(codes, found, tool)
        before = sys.gettrace()
        made.start()
        try:
            with contextlib.suppress(ValueError):
                call()
        finally:
            assert made.stop() is None
        assert sys.gettrace() == before
        call_again = [*found.events]
        with contextlib.suppress(ValueError):
            call()
        assert found.events == call_again  # stopped
        return found.events

    return run


def test_lines_calls_and_what_is_not_asked_for(record: Any) -> None:
    def other() -> None:
        return None

    def function() -> None:
        other()
        other()

    assert record(function, function) == ["enter function", "1", "2", "ended function"]
    assert record(other, function) == []


def test_a_generator_is_left_and_entered(record: Any) -> None:
    def numbers() -> Iterator[int]:
        yield 1
        yield 2

    events = record(lambda: [*numbers()], numbers)
    assert [event for event in events if not event.isdecimal()] == [
        *["enter numbers", "yielded numbers"] * 2,
        *["enter numbers", "ended numbers"],
    ]
    assert [event for event in events if event.isdecimal()] == ["1", "2"]


def test_an_exception_leaves(record: Any) -> None:
    def fails() -> None:
        raise ValueError

    assert record(fails, fails) == ["enter fails", "1", "ended fails"]


class Turn:
    """Waits for the next turn of what drives the coroutine."""

    def __await__(self) -> Iterator[None]:
        yield


def test_waiting_is_not_ending(record: Any) -> None:
    """Also where it is ended from outside while it waits, or waits again after that."""

    async def waits() -> int:
        await Turn()
        with contextlib.suppress(KeyError):
            await Turn()
        await Turn()
        return 1

    def drive() -> None:
        coroutine = waits()
        coroutine.send(None)
        coroutine.send(None)
        coroutine.throw(KeyError)
        with contextlib.suppress(StopIteration):
            coroutine.send(None)

    def abandon() -> None:
        coroutine = waits()
        coroutine.send(None)
        with contextlib.suppress(ValueError):
            coroutine.throw(ValueError)

    left = [each for each in record(drive, waits) if each.split()[0] in HOW]
    assert left == [*["awaits waits"] * 3, "ended waits"]
    left = [each for each in record(abandon, waits) if each.split()[0] in HOW]
    assert left == ["awaits waits", "ended waits"]


def test_an_asynchronous_generator_yields_or_waits(record: Any) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        await Turn()
        yield 2

    async def all_of_it() -> list[int]:
        return [each async for each in numbers()]

    def drive() -> None:
        coroutine = all_of_it()
        coroutine.send(None)
        with contextlib.suppress(StopIteration):
            coroutine.send(None)

    left = [each for each in record(drive, numbers) if each.endswith(" numbers")]
    assert [each.split()[0] for each in left] == [
        *["enter", "yielded", "enter", "awaits", "enter", "yielded", "enter", "ended"]
    ]


def test_a_generator_that_is_closed_has_ended(record: Any) -> None:
    def numbers() -> Iterator[int]:
        try:
            yield 1
        finally:
            ""

    def drive() -> None:
        one = numbers()
        next(one)
        one.close()

    left = [each for each in record(drive, numbers) if each.endswith("ed numbers")]
    assert left == ["yielded numbers", "ended numbers"]


#: From there on the events of other code cost nothing.
before_monitoring = pytest.mark.skipif("monitoring" in SOURCES, reason="of Python before 3.12")


@pytest.fixture
def skipping() -> Iterator[Callable[..., tuple[list[str], str | None, Any]]]:
    """``skipping(cell, **names)``: the lines of a cell whose calls are not traced, and the note."""
    before = sys.gettrace()
    sys.settrace(None)

    def run(cell: str, **names: Any) -> tuple[list[str], str | None, Any]:
        code = compile(cell, "<cell>", "exec")
        found = Record()
        made = line_events.TraceEvents({id(code): code}, found, skips=True)
        made.start()
        kept = []
        try:
            exec(code, names)
        except ValueError as error:
            kept.append(error)  # as where its traceback is shown later
        note = made.stop()
        assert sys.gettrace() is None
        events = [each for each in found.events if each.isdecimal()]
        return events, note, made

    yield run
    sys.settrace(before)


def fails() -> None:
    raise ValueError


class Keeps:
    """Keeps an exception, and suppresses it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> bool:
        self.error = error
        return True


@before_monitoring
def test_what_a_line_calls_is_not_traced(skipping: Any) -> None:
    """The functions see no tracer, and all lines have their events."""
    seen: list[Any] = []

    def function(n: int) -> None:
        seen.append(sys.gettrace())
        if n:
            function(n - 1)

    def generator() -> Iterator[int]:
        yield 1

    cell = "for i in range(2):\n    f(2)\n    [f(0) for _ in 'ab']\nfor i in g():\n    x = i"
    events, note, made = skipping(cell, f=function, g=generator)
    assert [int(each) + 1 for each in events] == [1, 2, 3, 1, 2, 3, 1, 4, 5, 4]
    assert note is None
    assert seen == [None] * 10
    assert made.skipped == 4
    assert made.slowed >= 2, "a generator's frame outlives a call"


@before_monitoring
def test_an_exception_that_passes_a_line_that_calls(skipping: Any) -> None:
    assert skipping("x = 1\nf()\ny = 2", f=fails)[:2] == (["0", "1"], None)
    suppressed = "with contextlib.suppress(ValueError):\n    f()\nx = 1"
    events, note, _ = skipping(suppressed, f=fails, contextlib=contextlib)
    assert events[-1] == "2"
    _, note, _ = skipping("with keeps:\n    f()\nx = 1\ny = 2", f=fails, keeps=Keeps())
    assert note == "an exception was kept while the cell ran: lines after it are missing"


@before_monitoring
def test_a_tracer_that_another_function_leaves_is_noted(skipping: Any) -> None:
    def leaves() -> None:
        sys.settrace(lambda *_: None)

    def takes_out() -> None:
        sys.settrace(lambda *_: None)
        sys.settrace(None)

    events, note, _ = skipping("f()\nx = 1\ny = 2", f=takes_out)
    assert (events, note) == (["0", "1", "2"], None)
    try:
        _, note, _ = skipping("f()\nx = 1\nstop()", f=leaves, stop=lambda: sys.settrace(None))
    finally:
        sys.settrace(None)
    assert note is not None


@before_monitoring
def test_a_tracer_that_is_put_back_is_noted(skipping: Any) -> None:
    cell = "old = sys.gettrace()\nsys.settrace(other)\nx = 1\nsys.settrace(old)\ny = 2"
    events, note, _ = skipping(cell, sys=sys, other=lambda *_: None)
    assert events == ["0", "1", "2", "3", "4"]
    assert note == "another trace function was set for a while: lines of functions may be missing"


def test_another_thread_is_left_out(record: Any) -> None:
    def function() -> None:
        return None

    def elsewhere() -> None:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    assert record(elsewhere, function) == []


@pytest.mark.skipif("monitoring" not in SOURCES, reason="sys.monitoring is of Python 3.12 on")
def test_where_all_tools_are_in_use_the_trace_function_serves() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    assert isinstance(line_events.events({}, Record()), line_events.MonitoringEvents)
    for tool in (3, 4):
        monitoring.use_tool_id(tool, "another")
    try:
        assert isinstance(line_events.events({}, Record()), line_events.TraceEvents)
    finally:
        for tool in (3, 4):
            monitoring.free_tool_id(tool)


#: Cells that reach the recursion limit, the lines with events, and the note, if there is one.
DEEP = {
    "caught": (
        "try:\n    f(0)\nexcept RecursionError:\n    pass\nx = 1\ny = 2",
        [1, 2, 5, 6],
        "the recursion limit was reached: lines that ran after it are missing",
    ),
    "kept": (
        "try:\n    f(0)\nexcept RecursionError as error:\n    kept.append(error)\nx = 1",
        [1, 2],
        "the recursion limit was reached: lines that ran after it are missing",
    ),
    "not caught": ("x = 1\nf(0)\ny = 2", [1, 2], None),
    "as deep as possible": ("x = 1\nf(0, deepest[0] - 1)\ny = 2\nz = 3", [1, 2, 3, 4], None),
}


def _raised(error: BaseException | None) -> tuple[str, list[str]]:
    """The message, and the names of the functions in the traceback."""
    assert error is not None
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(error), [*dict.fromkeys(names)]


@pytest.mark.parametrize("name", DEEP)
def test_at_the_recursion_limit(name: str) -> None:
    """The exception is the user's own, and tracing goes on or says why not."""
    text, expected, expected_note = DEEP[name]
    code = compile(text, "<cell>", "exec")
    deepest = [0]

    def f(n: int, end: float = float("inf")) -> int:
        deepest[0] = n
        return n if n >= end else f(n + 1, end)

    def run() -> list[tuple[str, list[str]]]:
        kept: list[RecursionError] = []
        try:
            exec(code, {"f": f, "kept": kept, "deepest": deepest})
        except RecursionError as error:
            kept.append(error)
        return [_raised(error) for error in kept]

    before = sys.gettrace()
    sys.settrace(None)
    try:
        with contextlib.suppress(RecursionError):
            f(0)
        deepest[0] -= 10  # it is called from elsewhere
        plain = run()
        found = Record()
        made = line_events.TraceEvents({id(code): code}, found)
        made.start()
        traced = run()
        note = made.stop()
        assert sys.gettrace() is None
    finally:
        sys.settrace(before)
    assert traced == plain
    assert [int(each) + 1 for each in found.events if each.isdecimal()] == expected
    assert note == expected_note


@pytest.mark.parametrize("source", SOURCES)
def test_traced_code_at_the_recursion_limit(source: str) -> None:
    """Where its own events cannot be received any more, there are none."""

    def rr(n: int) -> int:
        return rr(n + 1)

    class Deeper(Record):
        def enter(self, frame: FrameType) -> None:
            self._next(frame)

        def _next(self, frame: FrameType) -> None:
            super().enter(frame)

    before = sys.gettrace()
    sys.settrace(None)
    try:
        with pytest.raises(RecursionError) as plain:
            rr(0)
        made: Any = None
        codes, found = {id(rr.__code__): rr.__code__}, Deeper()
        if source == "trace":
            made = line_events.TraceEvents(codes, found)
        else:
            made = line_events.MonitoringEvents(codes, found, 3)
        made.start()
        with pytest.raises(RecursionError) as traced:
            rr(0)
        made.stop()
        assert sys.gettrace() is None
    finally:
        sys.settrace(before)
    assert _raised(traced.value)[1] == _raised(plain.value)[1]
    if source == "trace":
        assert str(traced.value) == str(plain.value)
    assert len(found.events) > 100
