"""Events of traced code in one thread: calls that begin or resume, lines, calls that end or pause.

From Python 3.12 on they come from ``sys.monitoring``, which costs other code nothing and does not
affect the trace function of a debugger or a coverage tool; before, from ``sys.settrace``.

That slows down all Python code, to a third of its speed and less, not only code that is traced. So
it is switched off while traced code calls another function, where that cannot lead to a missing
event, and on again at the function's end: the local trace function of its frame is then freed. So
it is near the recursion limit: there our functions could not be called any more, Python would end
the tracing, and the `RecursionError` would come from them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from gpumagic.cells.event_receiver import Events, Receiver
from gpumagic.cells.interrupts import DeferredInterrupts
from gpumagic.cells.pauses import PAUSES, Left, pauses_of, way_of_pausing


def events(
    codes: Mapping[int, CodeType],
    receiver: Receiver,
    *,
    skips: bool = False,
    consumed: Collection[int] = (),
) -> Events:
    """Return the source of events for this Python; ``codes`` are the code objects by their ids.

    ``skips``: no other code calls traced code, and ``receiver.may_skip`` is asked. ``consumed`` are
    the ids of generators' code objects that end within the call that resumes them.
    """
    if hasattr(sys, "monitoring"):
        tool = _free_tool()
        if tool is not None:
            return MonitoringEvents(codes, receiver, tool)
    # From Python 3.12 on, to switch tracing off and on has all code prepared anew.
    skips = skips and sys.version_info < (3, 12)
    return TraceEvents(codes, receiver, skips=skips, consumed=consumed)


def start(source: Events) -> None:
    """Start a source of events, or none of it where an interrupt comes."""
    try:
        source.start()
    except BaseException:
        stop(source)
        raise


def stop(source: Events) -> str | None:
    """Stop a source of events, also where an interrupt comes; return why some may be missing."""
    try:
        return source.stop()
    except BaseException:
        source.stop()
        raise


def _codes_of(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function, and of functions in it."""
    code = function.__code__
    yield code
    yield from (each for each in code.co_consts if isinstance(each, CodeType))


def _call_a_call() -> None:
    """Raise a `RecursionError` where what switches tracing off and on could soon not be called."""
    _call()


def _call() -> None:
    """Do nothing."""


class _Skipped:
    """The local trace function of a call without events; when it is freed, there are some again."""

    __slots__ = ("_events",)

    def __init__(self, events: TraceEvents) -> None:
        self._events = events

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        """Do nothing: another tracer calls this."""

    def __del__(self) -> None:
        call: set[None] = set()
        if hasattr(self, "_events"):  # an interrupt may come while it is made
            self._events.go_on(call)


class TraceEvents:
    """Events from ``sys.settrace``; a trace function that is set already is called too."""

    def __init__(
        self,
        codes: Mapping[int, CodeType],
        receiver: Receiver,
        *,
        skips: bool = False,
        consumed: Collection[int] = (),
    ) -> None:
        #: By the id of a code object, where it pauses.
        self._codes = {id_: pauses_of(code) for id_, code in codes.items()}
        self._receiver = receiver
        self._is_tracing = False
        #: The thread that is traced.
        self._thread = 0
        #: Whether there may be something to restore.
        self._is_started = False
        #: As it is set: each mention of a method makes it anew.
        self._function = self._begin_frame
        self._was_replaced = False
        #: The trace function that was set before.
        self._previous: Any = None
        ours = (TraceEvents._begin_frame, TraceEvents.go_on, _Skipped.__del__)
        self._interrupts = DeferredInterrupts([code for each in ours for code in _codes_of(each)])
        self._skips = skips
        self._consumed = consumed
        #: How many calls of traced code run.
        self._running = 0
        #: Where tracing is switched off: the frame of traced code, and its place.
        self._off_at: tuple[FrameType, int] | None = None
        self._has_gone_on_late = False
        #: What a call gets near the recursion limit, where it cannot be made any more.
        self._at_limit: _Skipped | None = None
        self._was_at_limit = self._has_ended = False
        self.skipped = self.slowed = 0

    def start(self) -> None:
        """Start tracing."""
        self._thread = get_ident()
        self._previous = sys.gettrace()
        self._is_started = self._is_tracing = True
        self._at_limit = _Skipped(self)
        if self._previous is None:  # a debugger waits for input in our calls
            self._interrupts.start()
        sys.settrace(self._function)

    def stop(self) -> str | None:
        """Stop tracing and restore the trace function that was set before."""
        if not self._is_started:
            return None
        was_interrupted = not self._is_tracing
        self._is_tracing = False
        # Not `is`: every access to a method creates a new object.
        current = sys.gettrace()
        is_off = self._off_at is not None or self._has_ended
        is_ours = current == self._begin_frame or (current is None and is_off)
        if is_ours:
            sys.settrace(self._previous)
        is_ours |= was_interrupted and current == self._previous
        self._end_skip()
        self._at_limit = None  # before: an interrupt in what its end calls could not be raised
        self._interrupts.stop()
        self._is_started = False
        if self._has_gone_on_late and self._was_at_limit:
            return "the recursion limit was reached: lines that ran after it are missing"
        if self._has_gone_on_late:
            return "an exception was kept while the cell ran: lines after it are missing"
        if is_ours and self._was_replaced:
            return "another trace function was set for a while: lines of functions may be missing"
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
        pauses = self._codes.get(id(frame.f_code))
        try:
            if pauses is None or not self._is_tracing:
                return self._skip(frame) if self._previous is None else other
            self._running += 1
            self._receiver.enter(frame)
        except RecursionError:
            return self._end_at_limit(frame, may_go_on=pauses is None)
        # A coverage tool disables line events in frames where it needs none.
        wanted, frame.f_trace_lines = frame.f_trace_lines, True
        raised = -1  # the place of the last exception in the current line
        is_away = False  # has paused; a call that resumes gets another function than this one

        def trace_lines(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal other, raised, is_away
            call: set[None] = set()
            if self._interrupts.is_pending:
                self._interrupts.resend_after(call)
            if other is not None and (wanted or event != "line"):
                # A local trace function that returns None stays set.
                other = other(frame, event, arg) or other
                self._set_again()
            try:
                if self._is_tracing:
                    if is_away:  # an exception was thrown into it, which is no `call`
                        is_away = False
                        self._running += 1
                        self._receiver.enter(frame)
                    if event == "line":
                        raised = -1
                        if self._previous is None and sys.gettrace() is not self._function:
                            # Which leaves this local function where it is.
                            self._was_replaced = True
                        self._receiver.to_line(frame, frame.f_lineno)
                    elif event == "exception":
                        raised = frame.f_lasti
                    elif event == "return":
                        self._running -= 1
                        # An exception can also be thrown into a paused call, at its place.
                        is_away = frame.f_lasti in pauses and not (
                            arg is None and frame.f_lasti == raised
                        )
                        how = way_of_pausing(frame.f_code, arg) if is_away else Left.ENDED
                        self._receiver.leave(frame, how)
            except RecursionError:
                self._end_at_limit(frame, may_go_on=False)
            return trace_lines

        return trace_lines

    def _skip(self, frame: FrameType) -> _Skipped | None:
        """Switch tracing off until a call has ended, if it may be."""
        _call_a_call()  # raises near the recursion limit
        if not self._running:
            return None
        code = frame.f_code
        # A generator's frame outlives the call.
        may_end = not code.co_flags & PAUSES or id(code) in self._consumed
        traced = frame.f_back if may_end and self._skips else None
        while traced is not None and id(traced.f_code) not in self._codes:
            traced = traced.f_back
        if traced is None or not self._is_tracing or not self._receiver.may_skip(traced):
            self.slowed += 1
            return None
        self.skipped += 1
        self._off_at = traced, traced.f_lasti
        sys.settrace(None)
        return _Skipped(self)

    def _end_at_limit(self, frame: FrameType, *, may_go_on: bool) -> _Skipped | None:
        """Switch tracing off near the recursion limit: until a call has ended, or for good."""
        if self._previous is not None:
            raise
        sys.settrace(None)
        if not may_go_on or self._at_limit is None:
            self._has_ended = True
            return None
        skipped, self._at_limit = self._at_limit, None
        traced: FrameType | None = frame
        while traced is not None and id(traced.f_code) not in self._codes:  # calls nothing here
            traced = traced.f_back
        if traced is not None:
            self._off_at = traced, traced.f_lasti
        self._was_at_limit = True
        return skipped

    def go_on(self, call: set[None]) -> None:
        """Switch tracing on again, in the thread that is traced."""
        if self._interrupts.is_pending:
            self._interrupts.resend_after(call)
        if self._is_tracing and get_ident() == self._thread:
            self._end_skip()
            if self._at_limit is None:
                self._at_limit = _Skipped(self)
            if sys.gettrace() is None and not self._has_ended:
                sys.settrace(self._function)

    def _end_skip(self) -> None:
        """Note whether traced code has gone on while tracing was off."""
        if self._off_at is not None:
            caller, place = self._off_at
            self._has_gone_on_late |= caller.f_lasti != place
            self._off_at = None

    def _set_again(self) -> None:
        """Set this trace function again if the previous one has replaced it."""
        current = sys.gettrace()
        if current != self._begin_frame:
            self._interrupts.stop()
            # By itself (coverage does that), by another one, or by None.
            self._previous = current
            sys.settrace(self._function)


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
        self.skipped = self.slowed = 0
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._thread = 0
        self._is_started = False
        of_class = MonitoringEvents
        calls = (of_class._enter, of_class._line, of_class._leave, of_class._pause)
        self._interrupts = DeferredInterrupts([code for call in calls for code in _codes_of(call)])

    def start(self) -> None:
        """Start tracing the code objects."""
        monitoring, kinds = self._monitoring, self._monitoring.events
        self._thread = get_ident()
        self._is_started = True
        monitoring.use_tool_id(self._tool, "gpumagic")
        callbacks = {
            kinds.PY_START: self._enter,
            kinds.PY_RESUME: self._enter,
            kinds.PY_THROW: self._enter,
            kinds.LINE: self._line,
            kinds.PY_RETURN: self._leave,
            kinds.PY_YIELD: self._pause,
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
        if not self._is_started:
            return None
        monitoring = self._monitoring
        self._interrupts.stop()
        if monitoring.get_tool(self._tool) != "gpumagic":
            self._is_started = False
            return "the monitoring was ended while the cell ran: lines are missing"
        monitoring.set_events(self._tool, 0)
        for code in self._codes.values():
            monitoring.set_local_events(self._tool, code, 0)
        for kind in range(len(bin(monitoring.events.PY_THROW | monitoring.events.PY_UNWIND))):
            monitoring.register_callback(self._tool, 1 << kind, None)
        monitoring.free_tool_id(self._tool)
        self._is_started = False
        return None

    def _enter(self, code: CodeType, *_: Any) -> None:
        call: set[None] = set()
        if self._interrupts.is_pending:
            self._interrupts.resend_after(call)
        if id(code) in self._codes and get_ident() == self._thread:
            try:
                self._receiver.enter(sys._getframe(1))
            except RecursionError:
                return  # the receiver has ended

    def _line(self, code: CodeType, line: int) -> None:
        call: set[None] = set()
        if self._interrupts.is_pending:
            self._interrupts.resend_after(call)
        if get_ident() == self._thread:
            try:
                self._receiver.to_line(sys._getframe(1), line)
            except RecursionError:
                return

    def _leave(self, code: CodeType, *_: Any) -> None:
        call: set[None] = set()
        if self._interrupts.is_pending:
            self._interrupts.resend_after(call)
        if id(code) in self._codes and get_ident() == self._thread:
            try:
                self._receiver.leave(sys._getframe(1), Left.ENDED)
            except RecursionError:
                return

    def _pause(self, code: CodeType, _: int, value: Any) -> None:
        call: set[None] = set()
        if self._interrupts.is_pending:
            self._interrupts.resend_after(call)
        if get_ident() == self._thread:
            try:
                self._receiver.leave(sys._getframe(1), way_of_pausing(code, value))
            except RecursionError:
                return
