"""Trace code line by line, and let a counter count where one line gives way to the next.

Only the code objects asked for are traced line by line, in the calling thread; every other function
that a line calls counts to the line. A comprehension counts to the lines on which it is written,
whoever runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from gpumagic.cells.line_events import events
from gpumagic.cells.line_sources import Inline, Source, with_inline
from gpumagic.system import text

_Record = TypeVar("_Record")


class Line(NamedTuple):
    """A line of a traced source: the source's place among them, and the line's number."""

    source: int
    number: int


class LineCounter(Protocol[_Record]):
    """What is counted line by line; a record is what is counted of one call of traced code.

    Each of these is called while the code that is traced stands still.
    """

    def new_record(self) -> _Record:
        """Return the record of a call that begins."""
        ...

    def read(self, running: _Record | None) -> None:
        """Read the counters; what happened since the last reading is the running line's.

        ``running`` is the record of the call whose line that is; None if none is traced.
        """
        ...

    def begin_statement(self, call: _Record) -> None:
        """Begin a statement, whose lines may run several times, also after an ``await``."""
        ...

    def begin_line(self, call: _Record, line: Line) -> None:
        """Begin a line at the last reading."""
        ...

    def end_line(self, call: _Record, line: Line, *, recursive: bool) -> None:
        """End a line at the last reading.

        ``recursive``: the same line runs in a caller, too, and counts all that happens in this one.
        """
        ...

    def end_call(self, call: _Record, caller: _Record | None) -> None:
        """End or leave a call, which may go on later with the same record."""
        ...


class _Call(Generic[_Record]):
    """A call of traced code that has begun, and the line that it is at."""

    def __init__(self, source: int, frame: FrameType, record: _Record) -> None:
        self.source = source
        self.record = record
        #: The call's own frame, and those of comprehensions within it, with the line they left.
        self.frames: list[tuple[FrameType, int]] = [(frame, 0)]
        self.line = frame.f_lineno
        #: The statement that runs, by its first line.
        self.statement = 0


@dataclass(frozen=True)
class _Paused(Generic[_Record]):
    """A call that was left, perhaps by ``await`` or ``yield``, and may go on where it was."""

    code: CodeType
    #: The place in the code.
    last: int
    statement: int
    record: _Record

    def is_where(self, frame: FrameType) -> bool:
        """Whether a frame with the same id is this one: a new one stands elsewhere."""
        # Some versions of Python have gone on to the next instruction.
        return self.code is frame.f_code and frame.f_lasti in (self.last, self.last + 2)


_PAUSES = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR


class LineTracer(Generic[_Record]):
    """Traces ``sources`` from `start` to `stop`, in the calling thread, for ``counter``."""

    def __init__(self, sources: Sequence[Source], counter: LineCounter[_Record]) -> None:
        self._counter = counter
        self._statements = [source.statements for source in sources]
        inside = [
            (code, i, inline)
            for i, source in enumerate(sources)
            for whole in source.codes
            for code, inline in with_inline(whole)
        ]
        #: By the id of a code object, which source it is of, and how it is run.
        self._traced = {id(code): (i, inline) for code, i, inline in inside}
        self._events = events({id(code): code for code, _, _ in inside}, self)
        self._calls: list[_Call[_Record]] = []
        self._active: Counter[Line] = Counter()
        #: By the id of a frame, which is not kept: it would keep what the frame holds.
        self._paused: dict[int, _Paused[_Record]] = {}
        self._tracing = False
        #: The sources of which any line ran.
        self.ran: set[int] = set()
        #: Why lines may be missing, if they may: one line each.
        self.notes: list[str] = []

    def start(self) -> None:
        """Begin to trace."""
        self._tracing = True
        self._events.start()

    def stop(self) -> None:
        """Stop tracing."""
        note = self._events.stop()
        if note is not None:
            self._note(note)
        self._tracing = False
        self._calls.clear()

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    # --- the events --------------------------------------------------------------------------

    def enter(self, frame: FrameType) -> None:
        """Begin a call of traced code, or go on with it."""
        if self._tracing:
            self._guarded(self._enter, frame, *self._traced[id(frame.f_code)])

    def to_line(self, frame: FrameType, line: int) -> None:
        """Begin a line."""
        if self._tracing:
            self._guarded(self._to_line, frame, line)

    def leave(self, frame: FrameType) -> None:
        """End a call, or leave it by ``await`` or ``yield``."""
        if self._tracing:
            self._guarded(self._leave, frame)

    def _guarded(self, step: Any, *arguments: Any) -> None:
        """Trace no more lines after an error of ours, which must not reach the user's code."""
        try:
            step(*arguments)
        except Exception as error:
            self._tracing = False
            self._note(f"lines are missing after an error ({text.named(error)})")

    # --- from line to line -------------------------------------------------------------------

    def _enter(self, frame: FrameType, source: int, inline: Inline) -> None:
        self.ran.add(source)
        top = self._calls[-1] if self._calls else None
        if inline and top is not None and top.source == source:
            top.frames.append((frame, top.line))
            self._go_to(top, frame.f_lineno, frame)
            return
        self._read()
        paused = self._paused.pop(id(frame), None)
        if paused is not None and paused.is_where(frame):
            call = _Call(source, frame, paused.record)
            call.statement = paused.statement
        else:
            call = _Call(source, frame, self._counter.new_record())
            call.statement = self._statement(call)
        self._calls.append(call)
        self._begin_line(call)

    def _to_line(self, frame: FrameType, line: int) -> None:
        call = self._unwind_to(frame)
        if call is not None:
            self._go_to(call, line, frame)

    def _leave(self, frame: FrameType) -> None:
        call = self._unwind_to(frame)
        if call is None:
            return
        _, line = call.frames.pop()
        if call.frames:
            # A comprehension's end: back in the line that runs it.
            self._go_to(call, line, call.frames[-1][0])
        else:
            self._pop(frame if frame.f_code.co_flags & _PAUSES else None)

    def _unwind_to(self, frame: FrameType) -> _Call[_Record] | None:
        """Return the call of ``frame``; end those above it, whose end was not traced."""
        if self._calls and self._calls[-1].frames[-1][0] is frame:
            return self._calls[-1]
        if not any(known is frame for call in self._calls for known, _ in call.frames):
            return None
        while True:
            call = self._calls[-1]
            while call.frames:
                if call.frames[-1][0] is frame:
                    return call
                call.frames.pop()
            self._pop()

    def _pop(self, paused: FrameType | None = None) -> None:
        """End a call; ``paused`` is its frame if it may go on later."""
        self._read()
        call = self._calls.pop()
        self._end_line(call)
        if paused is not None:
            self._paused[id(paused)] = _Paused(
                paused.f_code, paused.f_lasti, call.statement, call.record
            )
        self._counter.end_call(call.record, self._calls[-1].record if self._calls else None)

    def _go_to(self, call: _Call[_Record], line: int, frame: FrameType) -> None:
        # One line after itself is one run: a comprehension's passes, a loop's in one line.
        if line == call.line:
            return
        self._read()
        self._end_line(call)
        call.line = line
        # A comprehension belongs to the statement that runs it, wherever it is written.
        if self._traced[id(frame.f_code)][1] is not Inline.EXPRESSION:
            statement = self._statement(call)
            if statement != call.statement:
                call.statement = statement
                self._counter.begin_statement(call.record)
        self._begin_line(call)

    def _statement(self, call: _Call[_Record]) -> int:
        """Return the first line of the statement that the call's line is in."""
        return self._statements[call.source].get(call.line, call.line)

    def _read(self) -> None:
        self._counter.read(self._calls[-1].record if self._calls else None)

    def _begin_line(self, call: _Call[_Record]) -> None:
        line = Line(call.source, call.line)
        self._active[line] += 1
        self._counter.begin_line(call.record, line)

    def _end_line(self, call: _Call[_Record]) -> None:
        line = Line(call.source, call.line)
        self._active[line] -= 1
        self._counter.end_line(call.record, line, recursive=self._active[line] > 0)
