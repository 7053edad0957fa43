"""Which lines ran when, by the host's clock: the lines of a run under the profiler."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from time import perf_counter

from gpumagic.cells.line_sources import Source
from gpumagic.cells.line_tracer import Line, LineTracer
from gpumagic.cells.pauses import Left
from gpumagic.system import text
from gpumagic.timing.current_calls import CurrentCalls


class _Call:
    """A call of traced code."""

    __slots__ = ("line",)

    #: Its current line.
    line: Line


class LineLog:
    """Records which lines of ``sources`` run, from `start` to `stop`; raises nothing.

    A context manager, and the counter of its own tracer.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._tracer: LineTracer[_Call] = LineTracer(sources, self, by_statement=True)
        self._now = 0.0
        #: By source, the calls that run or wait.
        self._calls: list[CurrentCalls[_Call]] = [CurrentCalls() for _ in sources]
        #: When the lines changed, and to which of ``_states``.
        self._times, self._entries = array("d"), array("l")
        self._states: list[tuple[Line, ...]] = []
        self._numbers: dict[tuple[Line, ...], int] = {}
        #: Why there are no lines.
        self.note: str | None = None

    def __enter__(self) -> LineLog:
        try:
            self._tracer.start()
        except Exception as error:  # all of sys.monitoring's tools are in use
            self.note = text.named(error)
        return self

    def __exit__(self, *_: object) -> None:
        if self.note is not None:
            return
        self._tracer.stop()
        self._now = perf_counter()
        self._calls.clear()
        self._write()
        if self._tracer.notes:
            self.note = self._tracer.notes[0]

    def at(self, time: float) -> tuple[Line, ...]:
        """Return the line of each source that ran at a time of `perf_counter`."""
        place = bisect_right(self._times, time) - 1
        return self._states[self._entries[place]] if place >= 0 else ()

    def _write(self) -> None:
        """Write down which lines run from now on."""
        state = tuple(calls.current.line for calls in self._calls if calls.current is not None)
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        if self._times and self._times[-1] == self._now:
            self._entries[-1] = number
        else:
            self._times.append(self._now)
            self._entries.append(number)

    # --- what the tracer calls ---------------------------------------------------------------

    def new_record(self) -> _Call:
        """Return the record of a call that begins."""
        return _Call()

    def read(self, running: _Call | None) -> None:
        """Read the clock."""
        self._now = perf_counter()

    def begin_statement(self, call: _Call) -> None:
        """Do nothing: the runs of lines are independent of one another."""

    def begin_line(self, call: _Call, line: Line, *, again: bool) -> None:
        """Begin a run of a line, or go on with it."""
        call.line = line
        calls = self._calls[line.source]
        if not calls.is_running(call):
            calls.enter(call)
        self._write()

    def end_line(self, call: _Call, line: Line, *, recursive: bool) -> None:
        """Do nothing: another line begins, or the call ends."""

    def end_call(self, call: _Call, caller: _Call | None, how: Left) -> None:
        """End or pause a call."""
        self._calls[call.line.source].leave(call, awaits=how is Left.AWAITS)
        self._write()
