"""Events of traced code, from each source of them that this Python has."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from gpumagic.cells import line_events
from gpumagic.cells.line_events import Left

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
