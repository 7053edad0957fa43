"""Events of traced code in one thread: calls that begin or resume, lines, calls that end or pause.

From Python 3.12 on they come from ``sys.monitoring``, which costs other code nothing and does not
affect the trace function of a debugger or a coverage tool; before, from ``sys.settrace``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Protocol

from gpumagic.cells.interrupts import DeferredInterrupts


class Receiver(Protocol):
    """The receiver of events. Its methods raise nothing."""

    def enter(self, frame: FrameType) -> None:
        """Begin or resume a call of traced code."""
        ...

    def to_line(self, frame: FrameType, line: int) -> None:
        """Begin a line."""
        ...

    def leave(self, frame: FrameType) -> None:
        """End a call by ``return`` or an exception, or pause it by ``await`` or ``yield``."""
        ...


class Events(Protocol):
    """A source of events; ``stop`` returns why some may be missing."""

    def start(self) -> None: ...

    def stop(self) -> str | None: ...


def events(codes: Mapping[int, CodeType], receiver: Receiver) -> Events:
    """Return the source of events for this Python; ``codes`` are the code objects by their ids."""
    if hasattr(sys, "monitoring"):
        tool = _free_tool()
        if tool is not None:
            return MonitoringEvents(codes, receiver, tool)
    return TraceEvents(codes, receiver)


def _codes_of(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function, and of functions in it."""
    code = function.__code__
    yield code
    yield from (each for each in code.co_consts if isinstance(each, CodeType))


class TraceEvents:
    """Events from ``sys.settrace``; a trace function that is set already is called too."""

    def __init__(self, codes: Mapping[int, CodeType], receiver: Receiver) -> None:
        self._codes = codes
        self._receiver = receiver
        self._is_tracing = False
        #: The trace function that was set before.
        self._previous: Any = None
        self._interrupts = DeferredInterrupts(_codes_of(TraceEvents._begin_frame))

    def start(self) -> None:
        """Start tracing."""
        self._is_tracing = True
        self._previous = sys.gettrace()
        if self._previous is None:  # a debugger waits for input in our calls
            self._interrupts.start()
        sys.settrace(self._begin_frame)

    def stop(self) -> str | None:
        """Stop tracing and restore the trace function that was set before."""
        self._is_tracing = False
        # Not `is`: every access to a method creates a new object.
        is_ours = sys.gettrace() == self._begin_frame
        if is_ours:
            sys.settrace(self._previous)
        self._interrupts.stop()
        if is_ours:
            return None
        return "the trace function was removed or replaced while the cell ran: lines are missing"

    def _begin_frame(self, frame: FrameType, event: str, arg: Any) -> Any:
        call: set[None] = set()
        if self._interrupts.is_pending:
            self._interrupts.resend_after(call)
        other = self._previous
        if other is not None:
            other = other(frame, event, arg)
            self._set_again()
        if id(frame.f_code) not in self._codes or not self._is_tracing:
            return other
        self._receiver.enter(frame)
        # A coverage tool disables line events in frames where it needs none.
        wanted, frame.f_trace_lines = frame.f_trace_lines, True

        def trace_lines(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal other
            call: set[None] = set()
            if self._interrupts.is_pending:
                self._interrupts.resend_after(call)
            if other is not None and (wanted or event != "line"):
                # A local trace function that returns None stays set.
                other = other(frame, event, arg) or other
                self._set_again()
            if self._is_tracing:
                if event == "line":
                    self._receiver.to_line(frame, frame.f_lineno)
                elif event == "return":
                    self._receiver.leave(frame)
            return trace_lines

        return trace_lines

    def _set_again(self) -> None:
        """Set this trace function again if the previous one has replaced it."""
        current = sys.gettrace()
        if current != self._begin_frame:
            self._interrupts.stop()
            # By itself (coverage does that), by another one, or by None.
            self._previous = current
            sys.settrace(self._begin_frame)


def _free_tool() -> int | None:
    """Return a free tool id of ``sys.monitoring`` that has no predefined use; None if none is."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    return next((each for each in (3, 4) if monitoring.get_tool(each) is None), None)


class MonitoringEvents:
    """Events from ``sys.monitoring``."""

    def __init__(self, codes: Mapping[int, CodeType], receiver: Receiver, tool: int) -> None:
        self._codes = codes
        self._receiver = receiver
        self._tool = tool
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._thread = 0
        calls = (MonitoringEvents._enter, MonitoringEvents._line, MonitoringEvents._leave)
        self._interrupts = DeferredInterrupts([code for call in calls for code in _codes_of(call)])

    def start(self) -> None:
        """Start tracing the code objects."""
        monitoring, kinds = self._monitoring, self._monitoring.events
        self._thread = threading.get_ident()
        monitoring.use_tool_id(self._tool, "gpumagic")
        callbacks = {
            kinds.PY_START: self._enter,
            kinds.PY_RESUME: self._enter,
            kinds.PY_THROW: self._enter,
            kinds.LINE: self._line,
            kinds.PY_RETURN: self._leave,
            kinds.PY_YIELD: self._leave,
            kinds.PY_UNWIND: self._leave,
        }
        for kind, callback in callbacks.items():
            monitoring.register_callback(self._tool, kind, callback)
        local = kinds.PY_START | kinds.PY_RESUME | kinds.LINE | kinds.PY_RETURN | kinds.PY_YIELD
        for code in self._codes.values():
            monitoring.set_local_events(self._tool, code, local)
        # These two events can only be set for all code.
        monitoring.set_events(self._tool, kinds.PY_THROW | kinds.PY_UNWIND)
        self._interrupts.start()

    def stop(self) -> str | None:
        """Stop tracing and free the tool id."""
        monitoring = self._monitoring
        self._interrupts.stop()
        if monitoring.get_tool(self._tool) != "gpumagic":
            return "the monitoring was ended while the cell ran: lines are missing"
        monitoring.set_events(self._tool, 0)
        for code in self._codes.values():
            monitoring.set_local_events(self._tool, code, 0)
        for kind in range(len(bin(monitoring.events.PY_THROW | monitoring.events.PY_UNWIND))):
            monitoring.register_callback(self._tool, 1 << kind, None)
        monitoring.free_tool_id(self._tool)
        return None

    def _enter(self, code: CodeType, *_: Any) -> None:
        call: set[None] = set()
        if self._interrupts.is_pending:
            self._interrupts.resend_after(call)
        if id(code) in self._codes and threading.get_ident() == self._thread:
            self._receiver.enter(sys._getframe(1))

    def _line(self, code: CodeType, line: int) -> None:
        call: set[None] = set()
        if self._interrupts.is_pending:
            self._interrupts.resend_after(call)
        if threading.get_ident() == self._thread:
            self._receiver.to_line(sys._getframe(1), line)

    def _leave(self, code: CodeType, *_: Any) -> None:
        call: set[None] = set()
        if self._interrupts.is_pending:
            self._interrupts.resend_after(call)
        if id(code) in self._codes and threading.get_ident() == self._thread:
            self._receiver.leave(sys._getframe(1))
