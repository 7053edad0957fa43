"""Trace code line by line, and call a counter where one line ends and the next begins.

Only the requested code objects are traced line by line, in the calling thread; every other function
that a line calls counts to the line. A comprehension counts to the lines on which it is written,
also if other code runs it.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from gpumagic.cells import interrupts, line_events
from gpumagic.cells.consumed_generators import consumed_codes
from gpumagic.cells.line_sources import Inline, Source, with_inline
from gpumagic.cells.pauses import PAUSES, Left, Paused
from gpumagic.system import text

_Record = TypeVar("_Record")


class Line(NamedTuple):
    """A line of a traced source: the source's index, and the line's number."""

    source: int
    number: int


class RunCounter(Protocol):
    """A counter of successive runs of lines in one call, without a call of the `LineCounter`."""

    #: The current line.
    number: int

    def go_to(self, number: int) -> bool:
        """Begin a run of a line; or return False and do nothing, where that is not for it."""
        ...


class LineCounter(Protocol[_Record]):
    """A counter of quantities by line; a record has the counts of one call of traced code.

    It may have ``begin_runs(call, line)``, which returns a `RunCounter` or None, and then
    ``end_runs(call, runs, source)``.

    The traced code is paused while one of these methods runs.
    """

    def new_record(self) -> _Record:
        """Return the record of a call that begins."""
        ...

    def read(self, running: _Record | None) -> None:
        """Read the counters; the change since the last reading belongs to the running line.

        ``running`` is the record of the call that the line is in; None if it is not traced.
        """
        ...

    def begin_statement(self, call: _Record) -> None:
        """Begin a statement, whose lines may run several times, also after an ``await``."""
        ...

    def begin_line(self, call: _Record, line: Line, *, again: bool) -> None:
        """Begin a line at the last reading.

        ``again``: go on with it, after what was called in it, or a pause of the call.
        """
        ...

    def end_line(self, call: _Record, line: Line, *, recursive: bool) -> None:
        """End a line at the last reading.

        ``recursive``: the same line also runs in a caller and counts the change within this one.
        """
        ...

    def end_call(self, call: _Record, caller: _Record | None, how: Left) -> None:
        """End or pause a call, which may resume later with the same record."""
        ...


class _Call(Generic[_Record]):
    """A running call of traced code, and its current line."""

    def __init__(self, source: int, frame: FrameType, record: _Record) -> None:
        self.source = source
        self.record = record
        #: The call's own frame, and those of comprehensions in it, with the line that runs them.
        self.frames: list[tuple[FrameType, int]] = [(frame, 0)]
        #: Or the first line of its statement, where statements are counted.
        self.line = frame.f_lineno
        #: That line, which has the figures from its beginning on.
        self.begun = Line(source, self.line)
        #: The first line of the current statement.
        self.statement = 0
        #: Whether its first line may be that at which the code before it has ended.
        self.follows = False


#: The tracers that run.
_running: weakref.WeakSet[LineTracer[Any]] = weakref.WeakSet()


class LineTracer(Generic[_Record]):
    """A tracer of ``sources`` from `start` to `stop`, in the calling thread, for ``counter``.

    ``by_statement``: the lines of a statement count as its first one, and comprehensions to the
    statement that runs them.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        counter: LineCounter[_Record],
        *,
        by_statement: bool = False,
    ) -> None:
        self._counter = counter
        self._by_statement = by_statement
        self._statements = [source.statements for source in sources]
        self._guarded_lines = [source.guarded for source in sources]
        #: The codes that go on where the one before has ended: a cell's last expression.
        self._following = {id(code) for source in sources for code in source.codes[1:]}
        #: The line at which the last call ended that no traced call had called.
        self._ended: Line | None = None
        inside = [
            (code, i, inline)
            for i, source in enumerate(sources)
            for whole in source.codes
            for code, inline in with_inline(whole)
            # An event for each value of a comprehension takes longer than the value.
            if not (by_statement and inline is Inline.EXPRESSION)
        ]
        #: By the id of a code object, the index of its source, and how it runs.
        self._traced = {id(code): (i, inline) for code, i, inline in inside}
        # Functions are called by other code, and generators and coroutines resumed.
        skips = all(source.guarded is not None for source in sources)
        skips = skips and not any(code.co_flags & PAUSES for code, _, _ in inside)
        traced = {id(code): code for code, _, _ in inside}
        consumed = {id(each) for s in sources for each in consumed_codes(s.codes, s.consumed)}
        consumed -= traced.keys()
        self._events = line_events.events(traced, self, skips=skips, consumed=consumed)
        self._calls: list[_Call[_Record]] = []
        self._active: Counter[Line] = Counter()
        #: By the id of a frame: a reference to it would keep its variables alive.
        self._paused: dict[int, Paused[_Record]] = {}
        self._tracing = False
        #: What counts successive runs by itself, and the frame in which they run.
        self._runs: RunCounter | None = None
        self._runs_frame: FrameType | None = None
        self._begin_runs: Any = getattr(counter, "begin_runs", None)
        #: Whether this is a child process that the traced code has forked: it counts nothing.
        self.is_forked = self._was_at_limit = False
        #: The sources of which any line ran.
        self.ran: set[int] = set()
        #: Why lines may be missing, if any may be; one line each.
        self.notes: list[str] = []

    def start(self) -> None:
        """Start tracing, or none of it where an interrupt comes."""
        self._tracing = True
        _running.add(self)
        line_events.start(self._events)

    def stop(self) -> None:
        """Stop tracing, also where an interrupt comes; may be called again, and without `start`."""
        _running.discard(self)
        try:
            self._guarded(self._end_runs)
        finally:
            note = line_events.stop(self._events)
        if self._was_at_limit:
            note = "the recursion limit was reached: lines that ran after it are missing"
        if note is not None:
            self._note(note)
        elif self._tracing:
            self._guarded(self._end_unseen)
        self._tracing = False
        self._calls.clear()

    def _end_unseen(self) -> None:
        """End the calls whose end was not seen: what they called raised an exception."""
        while self._calls:
            self._pop(self._calls[-1].frames[0][0], Left.ENDED)

    @property
    def skipped(self) -> int:
        """How many calls of other code were not traced, which takes time."""
        return self._events.skipped

    @property
    def slowed(self) -> int:
        """How many calls of other code the tracing slowed down."""
        return self._events.slowed

    def _stop_in_child(self) -> None:
        """Count nothing in a forked process: its counters are copies, and CUDA does not work."""
        self._tracing = False
        self.is_forked = True

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    # --- the events --------------------------------------------------------------------------

    def enter(self, frame: FrameType) -> None:
        """Begin or resume a call of traced code."""
        if self._tracing:
            self._guarded(self._end_runs)
            self._guarded(self._enter, frame, *self._traced[id(frame.f_code)])

    def to_line(self, frame: FrameType, line: int) -> None:
        """Begin a line."""
        if not self._tracing:
            return
        runs = self._runs
        if runs is not None:
            statements = self._statements[self._calls[-1].source]
            if frame is self._runs_frame and runs.go_to(statements.get(line, line)):
                return
            self._guarded(self._end_runs)
        self._guarded(self._to_line, frame, line)

    def leave(self, frame: FrameType, how: Left) -> None:
        """End a call, or pause it."""
        if self._tracing:
            self._guarded(self._end_runs)
            self._guarded(self._leave, frame, how)

    def may_skip(self, caller: FrameType) -> bool:
        """Return whether traced code cannot go on before what ``caller`` calls now has ended.

        Nor soon after: where an exception is handled, it keeps the frames that it has passed.
        """
        if not self._calls or not self._tracing:
            return False
        call = self._calls[-1]
        line = call.line if self._runs is None else self._runs.number
        guarded = self._guarded_lines[call.source]
        return call.frames[-1][0] is caller and guarded is not None and line not in guarded

    def _guarded(self, step: Any, *arguments: Any) -> None:
        """Run a step; after an error of gpumagic, stop tracing: it must not reach user code.

        Raises:
            RecursionError: the recursion limit is near, and there is nothing that could be called.
            Exception: a signal's handler has raised it.
        """
        try:
            step(*arguments)
        except RecursionError:
            self._tracing = False
            self._was_at_limit = True
            raise
        except Exception as error:
            self._tracing = False
            self._note(f"lines are missing after an error ({text.named(error)})")
            if interrupts.is_from_handler(error):
                raise

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
        again = paused is not None and paused.is_resumed(frame)
        if paused is not None and again:
            call = _Call(source, frame, paused.record)
            call.statement = paused.statement
        else:
            call = _Call(source, frame, self._counter.new_record())
            call.statement = self._statement(source, call.line)
        if self._by_statement:
            call.line = self._statement(source, call.line)
        call.follows = not again and id(frame.f_code) in self._following
        again = again or (call.follows and self._goes_on(call))
        self._calls.append(call)
        self._begin_line(call, again=again)

    def _to_line(self, frame: FrameType, line: int) -> None:
        call = self._unwind_to(frame)
        if call is not None:
            self._go_to(call, line, frame)

    def _leave(self, frame: FrameType, how: Left) -> None:
        call = self._unwind_to(frame)
        if call is None:
            return
        _, line = call.frames.pop()
        if call.frames:
            # A comprehension has ended: continue the line that runs it.
            self._go_to(call, line, call.frames[-1][0], again=True)
        else:
            self._pop(frame, how)

    def _unwind_to(self, frame: FrameType) -> _Call[_Record] | None:
        """Return the call of ``frame``; end the calls above it, whose end was not traced."""
        if self._calls and self._calls[-1].frames[-1][0] is frame:
            return self._calls[-1]
        if not any(known is frame for call in self._calls for known, _ in call.frames):
            return None
        while True:
            call = self._calls[-1]
            while call.frames:
                last, _ = call.frames[-1]
                if last is frame:
                    return call
                call.frames.pop()
            self._pop(last, Left.ENDED)

    def _pop(self, frame: FrameType, how: Left) -> None:
        """End or pause the innermost call, whose frame it is."""
        self._read()
        call = self._calls.pop()
        self._end_line(call)
        if not self._calls:
            self._ended = Line(call.source, call.line)
        if how is not Left.ENDED:
            self._paused[id(frame)] = Paused(
                frame.f_code, frame.f_lasti, call.statement, call.record
            )
        self._counter.end_call(call.record, self._calls[-1].record if self._calls else None, how)

    def _go_to(
        self, call: _Call[_Record], line: int, frame: FrameType, *, again: bool = False
    ) -> None:
        statement = self._statement(call.source, line)
        counted = statement if self._by_statement else line
        # A line that follows itself is one run: iterations of a comprehension or a one-line loop.
        if counted == call.line:
            return
        self._counter.read(self._calls[-1].record)
        self._end_line(call)
        call.line = counted
        again = again or (call.follows and self._goes_on(call))
        call.follows = False
        # A comprehension belongs to the statement that runs it, on whichever line it is written.
        is_inline = self._traced[id(frame.f_code)][1] is Inline.EXPRESSION
        if statement != call.statement and not is_inline:
            call.statement = statement
            self._counter.begin_statement(call.record)
        self._begin_line(call, again=again)
        if self._begin_runs is not None and self._by_statement and len(call.frames) == 1:
            self._runs = self._begin_runs(call.record, call.begun)
            self._runs_frame = None if self._runs is None else frame

    def _end_runs(self) -> None:
        """Go on with the last of the runs that were counted apart as with any other."""
        runs, self._runs, self._runs_frame = self._runs, None, None
        if runs is None:
            return
        call = self._calls[-1]
        counter: Any = self._counter
        counter.end_runs(call.record, runs, call.source)
        self._active[call.begun] -= 1
        call.line = call.statement = runs.number
        call.begun = Line(call.source, runs.number)
        self._active[call.begun] += 1

    def _goes_on(self, call: _Call[_Record]) -> bool:
        """Return whether the call goes on with the line at which the code before it has ended."""
        return Line(call.source, call.line) == self._ended

    def _statement(self, source: int, line: int) -> int:
        """Return the first line of the statement that contains a line."""
        return self._statements[source].get(line, line)

    def _read(self) -> None:
        self._counter.read(self._calls[-1].record if self._calls else None)

    def _begin_line(self, call: _Call[_Record], *, again: bool = False) -> None:
        line = call.begun = Line(call.source, call.line)
        self._active[line] += 1
        self._counter.begin_line(call.record, line, again=again)

    def _end_line(self, call: _Call[_Record]) -> None:
        line = call.begun
        self._active[line] = active = self._active[line] - 1
        self._counter.end_line(call.record, line, recursive=active > 0)


def _stop_in_child() -> None:
    for tracer in [*_running]:
        tracer._stop_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stop_in_child)
