"""Follow code statement by statement, and tell a counter where one ends and the next begins.

From Python 3.12 on by ``sys.monitoring``, before by ``sys.settrace``. Only the thread that starts
the tracer is followed, and only the requested code: what else a line calls counts to the line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dis import opmap
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from threading import get_ident
from traceback import walk_tb
from types import FrameType
from typing import Any

from gpumagic.cells.line_sources import CodeLine, CodeSource
from gpumagic.system import text

#: The instruction with which a call ends; before Python 3.12 no other one does.
_RETURN = opmap["RETURN_VALUE"]
_PAUSES = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
#: The identifiers of `sys.monitoring` that no kind of tool has by convention.
_TOOLS, _NAME = (3, 4), "gpumagic lines"
#: None before Python 3.12.
_MONITORING: Any = getattr(sys, "monitoring", None)


#: Ends the lines that ran until now, and begins the lines that it is given: the line that runs, and
#: of each other source the line that has called its function.
Switch = Callable[[tuple[CodeLine, ...]], None]


class _Call:
    """A running call of traced code."""

    __slots__ = ("frame", "line", "others", "source")

    def __init__(self, frame: FrameType, source: CodeSource, caller: _Call | None) -> None:
        self.frame, self.source = frame, source
        self.line: CodeLine | None = None
        #: Of each other source, the line in which it was called.
        self.others: tuple[CodeLine, ...] = ()
        if caller is not None:
            self.others = tuple(line for line in caller.lines() if line.source is not source)

    def lines(self) -> tuple[CodeLine, ...]:
        return self.others if self.line is None else (self.line, *self.others)


class LineTracer:
    """Counts the runs of the lines of ``sources``, and calls ``switch`` from one to the next.

    ``figures`` makes the figures of a line at its first run.
    """

    def __init__(
        self, sources: Sequence[CodeSource], switch: Switch, figures: Callable[[], Any]
    ) -> None:
        # By id: to hash a code object takes long.
        self._sources = {id(code): source for source in sources for code in source.codes}
        self._codes = [code for source in sources for code in source.codes]
        self._has_functions = len(sources) > 1
        self._switch, self._figures = switch, figures
        self._calls: list[_Call] = []
        #: The ids of the frames of these calls: a recursive function may have many.
        self._frames: set[int] = set()
        self._thread = get_ident()
        self._is_tracing = False
        #: The line at which the cell's own code has ended: its last expression may go on there.
        self._ended: CodeLine | None = None
        #: Why lines may be missing.
        self.note: str | None = None
        #: Whether other code was slowed down.
        self.has_slowed = False

    def start(self) -> None:
        """Begin to trace, if that is possible; else there is a `note`."""
        self._is_tracing = True
        if _MONITORING is not None:
            self._start_monitoring()
        elif sys.gettrace() is None:
            # Each mention of a method makes it anew.
            self._trace, self._trace_call = self._traced, self._called
            sys.settrace(self._trace_call)
        else:
            self._give_up("no lines: a debugger or another tracer traces this thread")

    def stop(self, *, failed: bool = False) -> None:
        """End the tracing; may be called again. ``failed``: the cell has raised an exception."""
        was_tracing, self._is_tracing = self._is_tracing, False
        if _MONITORING is not None:
            self._stop_monitoring()
        elif hasattr(self, "_trace_call"):
            if sys.gettrace() is self._trace_call:
                sys.settrace(None)
            elif was_tracing and not failed:
                self.note = "the tracing was ended in the cell: lines after that are missing"
        self._calls.clear()
        self._frames.clear()

    def _give_up(self, note: str) -> None:
        self._is_tracing = False
        self.note = note

    # --- what the events do ----------------------------------------------------------------------

    def _guarded(self, step: Callable[..., None], *arguments: object) -> None:
        """Run a step of this thread; an error of ours ends the tracing, not the user's code."""
        if not self._is_tracing or get_ident() != self._thread:
            return
        try:
            step(*arguments)
        except Exception as error:
            *_, (frame, _) = walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__", "").partition(".")[0] not in ("gpumagic", "torch"):
                raise  # a signal's handler has raised it
            self._give_up(f"lines are missing after an error ({text.named(error)})")

    def _to_line(self, frame: FrameType, number: int) -> None:
        call = self._calls[-1] if self._calls else None
        if call is None or call.frame is not frame:
            call = self._go_to(frame)
        line = call.source.lines.get(number)
        if line is None or line is call.line:
            return  # the next line of the same statement, or the next pass of a one-line loop
        if call.line is not None or line is not self._ended:  # else it goes on
            if not line.hits:
                line.figures = self._figures()
            line.hits += 1
        call.line, self._ended = line, None
        self._switch((line, *call.others) if call.others else (line,))

    def _resume(self, frame: FrameType) -> None:
        """Go on with a generator or coroutine, where it was paused."""
        call = self._go_to(frame)
        call.line = call.source.lines.get(frame.f_lineno)
        if call.line is not None and call.line.hits:
            self._switch(call.lines())
        else:
            call.line = None  # the first line of the generator has not begun

    def _leave(self, frame: FrameType, pauses: bool) -> None:
        """End or pause a call."""
        if id(frame) not in self._frames:
            return
        call = self._go_to(frame)
        self._pop()
        if self._calls:
            self._switch(self._calls[-1].lines())
        elif not pauses:  # else the line awaits something: the time until then is its own
            self._ended = call.line
            self._switch(())

    def _go_to(self, frame: FrameType) -> _Call:
        """Return the call of a frame; those above it have ended by an exception, unseen."""
        if id(frame) in self._frames:
            while self._calls[-1].frame is not frame:
                self._pop()
        else:
            caller = self._calls[-1] if self._calls else None
            self._frames.add(id(frame))
            self._calls.append(_Call(frame, self._sources[id(frame.f_code)], caller))
        return self._calls[-1]

    def _pop(self) -> None:
        self._frames.discard(id(self._calls.pop().frame))

    # --- before Python 3.12 ----------------------------------------------------------------------

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        """Trace a call of requested code; of other code, calls alone are seen, and slowed down."""
        code = frame.f_code
        if id(code) in self._sources:
            if code.co_flags & _PAUSES:
                self._guarded(self._resume, frame)
            return self._trace
        self.has_slowed = self.has_slowed or bool(self._calls)
        return None

    def _traced(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self._guarded(self._to_line, frame, frame.f_lineno)
        elif event == "return":
            code = frame.f_code
            pauses = bool(code.co_flags & _PAUSES) and code.co_code[frame.f_lasti] != _RETURN
            self._guarded(self._leave, frame, pauses)
        return self._trace

    # --- from Python 3.12 on ---------------------------------------------------------------------

    def _start_monitoring(self) -> None:
        free = [tool for tool in _TOOLS if _MONITORING.get_tool(tool) is None]
        if not free:
            self._give_up("no lines: other tools have taken all places of sys.monitoring")
            return
        self._tool = free[0]
        events = _MONITORING.events
        self._kinds = {
            events.LINE: lambda _, line: self._guarded(self._to_line, sys._getframe(1), line),
            events.PY_RESUME: lambda *_: self._guarded(self._resume, sys._getframe(1)),
            events.PY_YIELD: lambda *_: self._guarded(self._leave, sys._getframe(1), True),
            events.PY_RETURN: lambda *_: self._guarded(self._leave, sys._getframe(1), False),
            events.PY_UNWIND: lambda *_: self._guarded(self._leave, sys._getframe(1), False),
        }
        # After `_kinds`: from here on `stop` has something to undo, also after an interrupt.
        _MONITORING.use_tool_id(self._tool, _NAME)
        for kind, callback in self._kinds.items():
            _MONITORING.register_callback(self._tool, kind, callback)
        local = events.LINE | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        for code in self._codes:
            _MONITORING.set_local_events(self._tool, code, local)
        if self._has_functions:  # the cell's own code is unwound at its end
            _MONITORING.set_events(self._tool, events.PY_UNWIND)  # can only be set for all code

    def _stop_monitoring(self) -> None:
        if not hasattr(self, "_kinds"):
            return
        if _MONITORING.get_tool(self._tool) == _NAME:
            _MONITORING.set_events(self._tool, 0)
            for code in self._codes:
                _MONITORING.set_local_events(self._tool, code, 0)
            for kind in self._kinds:
                _MONITORING.register_callback(self._tool, kind, None)
            _MONITORING.free_tool_id(self._tool)
        del self._kinds
