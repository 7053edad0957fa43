"""Ctrl-C while code is traced: in the user's lines it is raised, in ours it waits for the next."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from gpumagic.cells import line_events
from gpumagic.cells.interrupts import DeferredInterrupts
from gpumagic.cells.pauses import Left


class Lines:
    """Counts the lines, and sends an interrupt while it is told of one."""

    def __init__(self, interrupted: int = 0) -> None:
        self.count = 0
        self._interrupted = interrupted

    def enter(self, frame: FrameType) -> None:
        pass

    def to_line(self, frame: FrameType, line: int) -> None:
        self.count += 1
        if self.count == self._interrupted:
            signal.raise_signal(signal.SIGINT)
            sum(range(10))  # Python looks for signals between its instructions

    def leave(self, frame: FrameType, how: Left) -> None:
        pass

    def may_skip(self, caller: FrameType) -> bool:
        return True


def runs_until_interrupted(lines: Lines) -> tuple[list[str], int]:
    """The functions in the interrupt's traceback, and the lines that were counted after it."""
    try:
        while True:
            pass
    except KeyboardInterrupt as interrupt:
        shown = [frame.f_code.co_name for frame, _ in traceback.walk_tb(interrupt.__traceback__)]
    before = lines.count
    first = 1
    second = first + 1
    return shown, lines.count - before + 0 * second


SOURCES: list[Callable[..., Any]] = [line_events.TraceEvents]
if hasattr(sys, "monitoring"):
    SOURCES.append(lambda codes, lines: line_events.MonitoringEvents(codes, lines, 3))
SHOWN = ["runs_until_interrupted"]


def traced(source: Callable[..., Any], lines: Lines) -> tuple[list[str], int]:
    code = runs_until_interrupted.__code__
    events = source({id(code): code}, lines)
    before = sys.gettrace(), signal.getsignal(signal.SIGINT)
    sys.settrace(None)
    events.start()
    try:
        return runs_until_interrupted(lines)
    finally:
        note = events.stop()
        sys.settrace(before[0])
        assert note is None
        assert signal.getsignal(signal.SIGINT) == before[1]


@pytest.mark.parametrize("source", SOURCES)
def test_in_our_code_it_is_raised_in_the_next_line(source: Callable[..., Any]) -> None:
    """Not in ours, whose frames would be shown, and which would end the tracing."""
    shown, counted = traced(source, Lines(interrupted=50))
    assert shown == SHOWN
    assert counted >= 3


@pytest.mark.parametrize("source", SOURCES)
def test_whenever_it_comes_none_is_lost(source: Callable[..., Any]) -> None:
    for turn in range(60):
        lines = Lines()

        def send(lines: Lines = lines, turn: int = turn) -> None:
            while lines.count < 20 + turn:
                time.sleep(0)
            os.kill(os.getpid(), signal.SIGINT)

        sender = threading.Thread(target=send)
        sender.start()
        shown, counted = traced(source, lines)
        sender.join()
        assert shown == SHOWN
        assert counted >= 3


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="calls are skipped before Python 3.12")
def test_where_calls_are_not_traced_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the function that is called, and where tracing is switched on again at its end."""
    code = compile("for i in range(100):\n    f()\n    x = 1", "<cell>", "exec")
    end_skip = line_events.TraceEvents._end_skip
    calls: dict[str, int] = {}
    arrives = [""]

    def arrive(here: str) -> None:
        calls[here] = calls.get(here, 0) + 1
        if here == arrives[0] and calls[here] == 30:
            signal.raise_signal(signal.SIGINT)
            sum(range(10))

    def interrupting(events: Any) -> None:
        arrive("ours")
        end_skip(events)

    before = sys.gettrace(), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(line_events.TraceEvents, "_end_skip", interrupting)
    for place, expected in (("ours", ["<module>"]), ("theirs", ["<module>", "<lambda>", "arrive"])):
        arrives[0] = place
        calls.clear()
        lines, passed = Lines(), list[str]()
        sys.settrace(None)
        events = line_events.TraceEvents({id(code): code}, lines, skips=True)
        events.start()
        try:
            exec(code, {"f": lambda: arrive("theirs")})
        except KeyboardInterrupt as interrupt:
            passed = [each.f_code.co_name for each, _ in traceback.walk_tb(interrupt.__traceback__)]
        finally:
            note = events.stop()
            sys.settrace(before[0])
        assert note is None
        assert [each for each in passed[1:] if each != "_handle"] == expected
        assert calls["theirs"] == 30
        assert min(events.skipped, lines.count // 2) >= 30
        assert signal.getsignal(signal.SIGINT) == before[1]


def test_a_handler_that_the_user_sets_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    deferred = DeferredInterrupts([])
    calls: list[int] = []

    def theirs(number: int, frame: Any) -> None:
        calls.append(number)

    try:
        signal.signal(signal.SIGINT, theirs)
        deferred.start()
        signal.raise_signal(signal.SIGINT)
        deferred.stop()
        assert signal.getsignal(signal.SIGINT) is theirs
        deferred.start()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        deferred.stop()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        deferred.start()  # nothing to defer
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [signal.SIGINT]


def test_another_thread_changes_no_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    deferred = DeferredInterrupts([])
    found: list[Any] = []

    def start() -> None:
        deferred.start()
        found.append(signal.getsignal(signal.SIGINT))
        deferred.stop()

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert found == [before]
