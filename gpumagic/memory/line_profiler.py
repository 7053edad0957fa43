"""What each line did to GPU memory: the counters, read where one line gives way to the next.

Only the code objects asked for are traced line by line, in the thread of the cell; every other
function that a line calls counts to the line. A comprehension counts to the lines on which it is
written, whoever runs it. A trace function that was there before (a debugger's, a coverage tool's)
goes on working, and is put back.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType
from typing import Any, NamedTuple

from gpumagic.memory.line_sources import Inline, Source, with_inline
from gpumagic.memory.peak_ledger import LEDGER, Scope
from gpumagic.memory.retained import EventLog, Living, Range
from gpumagic.results import LineMemory, LineReport, MemoryDelta, SourceLines
from gpumagic.system.text import named


class _Point(NamedTuple):
    """The counters of a device at one moment; the totals count from the tracer's beginning."""

    allocated: int = 0
    given: int = 0
    taken: int = 0
    blocks: int = 0


class _Level:
    """A call of traced code that has begun, and the line that it is at."""

    def __init__(self, source: int, frame: FrameType) -> None:
        self.source = source
        #: The call's own frame, and those of comprehensions within it, with the line they left.
        self.frames: list[tuple[FrameType, int]] = [(frame, 0)]
        self.line = frame.f_lineno
        self.start: dict[int, _Point] = {}
        #: The highest allocated bytes by ordinal, of the line and of the whole call.
        self.peak: dict[int, int] = {}
        self.highest: dict[int, int] = {}
        #: The statement that runs, by its first line.
        self.statement = 0
        #: By line and ordinal, what the lines of the statement have allocated themselves in it so
        #: far: they may come again, in the next pass of a comprehension or after an ``await``.
        self.carried: dict[int, dict[int, int]] = {}


class _Paused(NamedTuple):
    """A call that was left, perhaps by ``await`` or ``yield``, to come back to where it was."""

    code: CodeType
    #: The place in the code.
    last: int
    statement: int
    carried: dict[int, dict[int, int]]

    def is_where(self, frame: FrameType) -> bool:
        """Whether a frame with the same id is this one: one that is new stands elsewhere."""
        # Some versions of Python have gone on to the next instruction.
        return self.code is frame.f_code and frame.f_lasti in (self.last, self.last + 2)


_COMES_BACK = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR


class _Sum:
    """What a line did, summed over its runs."""

    def __init__(self) -> None:
        self.change = self.given = self.taken = self.peak = 0
        self.ranges: list[Range] = []

    def add(self, start: _Point, end: _Point, peak: int) -> None:
        self.change += end.allocated - start.allocated
        self.given += end.given - start.given
        self.taken += end.taken - start.taken
        self.peak = max(self.peak, peak - start.allocated)
        if end.blocks == start.blocks:
            return
        if self.ranges and self.ranges[-1][1] == start.blocks:
            self.ranges[-1] = (self.ranges[-1][0], end.blocks)
        else:
            self.ranges.append((start.blocks, end.blocks))

    def result(self, living: Living | None) -> LineMemory:
        stayed = None if living is None else living.bytes(self.ranges)
        return LineMemory(self.change, self.peak, self.given, self.taken, stayed)


class LineTracer:
    """Traces ``sources`` from `start` to `stop`, in the calling thread."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        #: By the id of a code object, which source it is of, and how it is run.
        self._traced = {
            id(code): (i, inline)
            for i, source in enumerate(sources)
            for whole in source.codes
            for code, inline in with_inline(whole)
        }
        self._levels: list[_Level] = []
        self._active: Counter[tuple[int, int]] = Counter()
        self._sums: dict[tuple[int, int, int], _Sum] = {}
        self._ran: set[int] = set()
        self._now: dict[int, _Point] = {}
        #: By the id of a frame, which is not kept: it would keep what the frame holds.
        self._paused: dict[int, _Paused] = {}
        self._scope: Scope | None = None
        self._events: EventLog | None = None
        self._living: dict[int, Living] = {}
        self._previous: Any = None
        #: Why lines may be missing, if they may: one line each.
        self.notes: list[str] = []

    def start(self) -> None:
        """Begin to trace.

        Raises:
            RuntimeError: the allocator keeps no counters.
        """
        self._scope = LEDGER.open()
        try:
            self._events = EventLog.begin()
            self._previous = sys.gettrace()
            sys.settrace(self._begin_frame)
        except BaseException:
            self._end_scope()
            raise

    def stop(self) -> None:
        """Stop, and put back the trace function that was there before."""
        # Not `is`: every mention of a method makes it anew.
        if sys.gettrace() == self._begin_frame:
            sys.settrace(self._previous)
        else:
            self._note("the trace function was replaced while the cell ran: lines are missing")
        self._levels.clear()
        # What came after the last traced line is in the log, too, by which blocks are counted.
        self._guarded(self._advance)
        had_log = self._events is not None
        self._end_scope()
        if not had_log and self._sums:
            self._note(
                "what stayed is not known: CUDA came up in the cell, or its allocator keeps no log"
            )

    def _end_scope(self) -> None:
        """End the scope and the log, also if an interrupt comes in between."""
        scope, self._scope = self._scope, None
        events, self._events = self._events, None
        try:
            if events is not None:
                self._living = events.end({i: point.blocks for i, point in self._now.items()})
        except RuntimeError as error:
            self._note(f"the allocator's event log cannot be read: {error}")
        finally:
            if scope is not None:
                LEDGER.drop(scope)
        if events is not None and events.disturbed:
            self._note(
                "what stayed is not known: a recording of the allocator's history was begun or "
                "ended in the cell"
            )

    def result(self, cell: MemoryDelta) -> LineReport:
        """What each line did; ``cell`` is what all of them did, the first source's."""
        sources = tuple(
            SourceLines(
                s.name, s.first, s.lines, self._devices(i), i in self._ran, empty=not s.codes
            )
            for i, s in enumerate(self._sources)
        )
        by_lines = {
            ordinal: sum(line.change for line in lines.values())
            for ordinal, lines in (sources[0].devices if sources else {}).items()
        }
        rest = {i: d.allocated - by_lines.get(i, 0) for i, d in cell.devices.items()}
        elsewhere = {ordinal: change for ordinal, change in rest.items() if change}
        return LineReport(cell, sources, elsewhere, tuple(self.notes))

    def _devices(self, source: int) -> Mapping[int, Mapping[int, LineMemory]]:
        found: dict[int, dict[int, LineMemory]] = {}
        for (of, line, ordinal), total in sorted(self._sums.items()):
            if of == source:
                found.setdefault(ordinal, {})[line] = total.result(self._living.get(ordinal))
        return dict(sorted(found.items()))

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    # --- the trace functions -----------------------------------------------------------------

    def _begin_frame(self, frame: FrameType, event: str, arg: Any) -> Any:
        theirs = self._previous
        if theirs is not None:
            theirs = theirs(frame, event, arg)
            self._stay()
        traced = self._traced.get(id(frame.f_code))
        if traced is None or self._scope is None:
            return theirs
        self._guarded(self._enter, frame, *traced)
        # A coverage tool switches the lines off where it wants none.
        wanted, frame.f_trace_lines = frame.f_trace_lines, True

        def trace_lines(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal theirs
            if theirs is not None and (wanted or event != "line"):
                # A trace function that returns None keeps its place.
                theirs = theirs(frame, event, arg) or theirs
                self._stay()
            if self._scope is not None:
                if event == "line":
                    self._guarded(self._to_line, frame)
                elif event == "return":
                    self._guarded(self._leave, frame)
            return trace_lines

        return trace_lines

    def _stay(self) -> None:
        """Stay the thread's trace function, whatever the one before us has just set."""
        now = sys.gettrace()
        if now != self._begin_frame:
            self._previous = now  # itself (coverage does that), another, or None: it wants no more
            sys.settrace(self._begin_frame)

    def _guarded(self, step: Any, *arguments: Any) -> None:
        """An error of ours must not come up in the user's code."""
        try:
            step(*arguments)
        except Exception as error:
            scope, self._scope = self._scope, None
            if scope is not None:
                LEDGER.drop(scope)
            self._note(f"lines are missing after an error ({named(error)})")

    # --- the course of the lines -------------------------------------------------------------

    def _enter(self, frame: FrameType, source: int, inline: Inline) -> None:
        self._ran.add(source)
        top = self._levels[-1] if self._levels else None
        if inline and top is not None and top.source == source:
            top.frames.append((frame, top.line))
            self._go_to(top, frame.f_lineno, frame)
            return
        self._advance()
        level = _Level(source, frame)
        level.statement = self._statement(level)
        self._levels.append(level)
        self._begin_line(level)
        paused = self._paused.pop(id(frame), None)
        if paused is not None and paused.is_where(frame):
            level.statement, level.carried = paused.statement, paused.carried

    def _to_line(self, frame: FrameType) -> None:
        level = self._unwind_to(frame)
        if level is not None:
            self._go_to(level, frame.f_lineno, frame)

    def _leave(self, frame: FrameType) -> None:
        level = self._unwind_to(frame)
        if level is None:
            return
        _, line = level.frames.pop()
        if level.frames:
            # A comprehension's end: back in the line that runs it.
            self._go_to(level, line, level.frames[-1][0])
        else:
            self._pop(frame if frame.f_code.co_flags & _COMES_BACK else None)

    def _unwind_to(self, frame: FrameType) -> _Level | None:
        """The level of ``frame``; what ended unseen above it is taken off."""
        if self._levels and self._levels[-1].frames[-1][0] is frame:
            return self._levels[-1]
        if not any(known is frame for level in self._levels for known, _ in level.frames):
            return None
        while True:
            level = self._levels[-1]
            while level.frames:
                if level.frames[-1][0] is frame:
                    return level
                level.frames.pop()
            self._pop()

    def _pop(self, left: FrameType | None = None) -> None:
        """End a call; ``left`` is its frame if it may come back."""
        self._advance()
        level = self._levels.pop()
        self._end_line(level)
        if left is not None:
            self._paused[id(left)] = _Paused(
                left.f_code, left.f_lasti, level.statement, level.carried
            )
        if self._levels:
            below = self._levels[-1]
            for ordinal, peak in level.highest.items():
                below.peak[ordinal] = max(below.peak.get(ordinal, 0), peak)
                below.highest[ordinal] = max(below.highest.get(ordinal, 0), peak)

    def _go_to(self, level: _Level, line: int, frame: FrameType) -> None:
        # One line after itself is one run: a comprehension's passes, a loop's in one line.
        if line == level.line:
            return
        self._advance()
        self._end_line(level)
        level.line = line
        # A comprehension belongs to the statement that runs it, wherever it is written.
        if self._traced[id(frame.f_code)][1] is not Inline.EXPRESSION:
            statement = self._statement(level)
            if statement != level.statement:
                level.statement, level.carried = statement, {}
        self._begin_line(level)

    def _statement(self, level: _Level) -> int:
        """The first line of the statement that the level's line is in."""
        return self._sources[level.source].statements.get(level.line, level.line)

    def _advance(self) -> None:
        """Read the counters; the peak since belongs to the line that was running."""
        if self._scope is None:
            return
        level = self._levels[-1] if self._levels else None
        for ordinal, (start, end, peak) in LEDGER.turn(self._scope).items():
            before = self._now.get(ordinal, _Point())
            self._now[ordinal] = _Point(
                end.allocated,
                before.given + end.given - start.given,
                before.taken + end.taken - start.taken,
                before.blocks + end.blocks - start.blocks,
            )
            if level is not None:
                level.peak[ordinal] = max(level.peak.get(ordinal, 0), peak)
                level.highest[ordinal] = max(level.highest.get(ordinal, 0), peak)

    def _begin_line(self, level: _Level) -> None:
        self._active[level.source, level.line] += 1
        level.start = dict(self._now)
        level.peak = {ordinal: point.allocated for ordinal, point in self._now.items()}

    def _end_line(self, level: _Level) -> None:
        key = (level.source, level.line)
        self._active[key] -= 1
        before = level.carried.setdefault(level.line, {})
        for ordinal, end in self._now.items():
            start, carried = level.start.get(ordinal, _Point()), before.get(ordinal, 0)
            before[ordinal] = carried + end.allocated - start.allocated
            if self._active[key]:
                continue  # a recursion: the call further down at the same line counts it all
            peak = level.peak.get(ordinal, end.allocated) + carried
            # By more than the totals, which another allocator than torch's own does not count.
            if end != start or peak > start.allocated:
                self._sums.setdefault((*key, ordinal), _Sum()).add(start, end, peak)
