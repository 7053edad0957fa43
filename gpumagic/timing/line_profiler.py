"""The lines of a cell while it is timed: traced, marked, and put together as a result."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import fsum, inf
from types import MethodType
from typing import Any, NamedTuple

from gpumagic.cells.line_events import TraceEvents
from gpumagic.cells.line_sources import Source, cell_source
from gpumagic.cells.line_tracer import Line, LineTracer
from gpumagic.results import CudaTiming
from gpumagic.results.line_timing import (
    BETWEEN,
    LineTiming,
    LineTimings,
    SourceTimings,
    Synchronization,
)
from gpumagic.results.timing import NO_SIGN
from gpumagic.system import text
from gpumagic.timing.compilations import has_compiled
from gpumagic.timing.input_waits import is_at_hand, is_container
from gpumagic.timing.line_kernels import CELL, LineWork
from gpumagic.timing.line_log import LineLog
from gpumagic.timing.line_notes import MeasuringCost, sample_note, unknown_note
from gpumagic.timing.line_timer import LineTimer
from gpumagic.timing.line_totals import LineTime
from gpumagic.timing.line_verdict import shows_work, verdict
from gpumagic.timing.run import ENDED
from gpumagic.timing.waiting_calls import UNNAMED
from gpumagic.timing.waits_by_time import written_call

#: Seconds that a ``for`` line waits for its next value at least, on average, to be called a wait.
_NEXT = 10e-6


class LineProfiler:
    """Measures the lines of ``sources``, the first of which is the cell's; ``names`` are its names.

    ``prepare``, ``start``, the cell, ``stop``, ``close``, ``result``.
    """

    def __init__(self, sources: Sequence[Source], names: Mapping[str, Any]) -> None:
        self._sources = sources
        self._names = names
        self._timer = LineTimer()
        self._tracer = LineTracer(sources, self._timer, by_statement=True)
        self._is_tracing = False
        self._cost = TracingCost()
        #: Why there are no lines.
        self.note: str | None = None

    def prepare(self) -> None:
        """Do what takes time, before the clocks of the cell start."""
        tracer = sys.gettrace()
        if tracer is not None:
            is_own = isinstance(tracer, MethodType) and isinstance(tracer.__self__, TraceEvents)
            why = "a debugger or another tracer traces this thread"
            if is_own:
                why = "those of the code around it are being measured"
            self.note = f"no times of lines: {why}"
            return
        with self._noting():
            self._cost = tracing_cost()
            self._timer.tracing, self._timer.short_tracing = self._cost.line, self._cost.short_line
            self._timer.shared.tracing = self._cost.marked_line
            self._timer.prepare()

    def start(self) -> None:
        """Begin to trace, when the clocks have started."""
        if self.note is None:
            with self._noting():
                self._is_tracing = True  # before: an interrupt may come between
                self._timer.start()
                self._tracer.start()

    def stop(self) -> None:
        """Stop tracing, before the clocks stop."""
        if self._is_tracing:
            with self._noting():
                try:
                    self._stop_tracing()
                finally:
                    if self._tracer.is_forked:  # CUDA does not work there
                        self.note = "no times of lines: this process was forked by the cell"
                    else:
                        self._timer.stop()

    def close(self, error: BaseException | None = None) -> None:
        """Put back what was there before; ``error`` is what the cell raised.

        Whatever has interrupted the other steps, or this one, which may then be called again.
        """
        with self._noting():
            try:
                self._stop_tracing()
            finally:
                self._timer.close(error)

    def release(self) -> None:
        """Free the events; there is no result after that."""
        self._timer.release()

    def _stop_tracing(self) -> None:
        if self._is_tracing:
            self._tracer.stop()
            self._is_tracing = False

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Open a scope whose errors leave the cell without lines, and change nothing else."""
        try:
            yield
        except Exception as error:
            self.note = f"no times of lines ({text.named(error)})"

    def result(self, timing: CudaTiming) -> CudaTiming:
        """Return ``timing`` with its ``lines``, or with a note why there are none.

        When the GPU has finished.
        """
        if self.note is None:
            with self._noting():
                self._timer.finish()
                times = self._timer.times()
                if timing.gpu_note == NO_SIGN and shows_work(times.values()):
                    timing = replace(timing, gpu_note=ENDED)
                return replace(timing, lines=self._lines(timing, times))
        return replace(timing, notes=(*timing.notes, str(self.note)))

    def log(self) -> LineLog:
        """Return what records the lines of one more run."""
        return LineLog(self._sources)

    def _lines(self, timing: CudaTiming, times: Mapping[Line, LineTime]) -> LineTimings:
        cell, *functions = (
            self._source_timings(i, source, times) for i, source in enumerate(self._sources)
        )
        cost = self._measuring_cost(timing.wall.median)
        notes = [
            *self._tracer.notes,
            self._timer.marks.note,
            *(each.note for each in self._sources),
        ]
        lines = [line for each in (cell, *functions) for line in each.lines]
        has_gpu = timing.gpu is not None and timing.gpu_note != NO_SIGN
        if has_gpu:
            notes += [sample_note(lines), unknown_note(times)]
        has_bounds = has_gpu and any(line.at_most for line in lines)
        return LineTimings(
            cell=replace(cell, lines=_on_devices(cell.lines, timing.per_device)),
            functions=tuple(
                replace(each, lines=_on_devices(each.lines, timing.per_device))
                for each in functions
            ),
            between=_between(cell.lines, timing),
            verdict=None if self._tracer.notes else verdict(cell.lines, timing, cost.known),
            complete=not self._tracer.notes,
            notes=tuple(filter(None, [*notes, cost.note(has_bounds=has_bounds)])),
            cost=cost.known,
        )

    def _source_timings(
        self, place: int, source: Source, times: Mapping[Line, LineTime]
    ) -> SourceTimings:
        lines = tuple(
            self._line_timing(place, source, line.number, time)
            for line, time in sorted(times.items())
            if line.source == place and 0 <= line.number - source.first < len(source.lines)
        )
        return SourceTimings(
            source.name,
            source.first,
            source.lines,
            lines,
            empty=not source.codes,
            compiled=any(map(has_compiled, source.codes)),
        )

    def _line_timing(self, place: int, source: Source, number: int, time: LineTime) -> LineTiming:
        calls: dict[str, list[float]] = {}
        for call, passed in time.synchronizations:
            calls.setdefault(call, []).append(passed)
        synchronizations = [
            Synchronization(call, len(times), fsum(times)) for call, times in calls.items()
        ]
        synchronizations += self._unnamed_waits(time, frozenset(calls))
        waited = fsum(each.time or 0.0 for each in synchronizations)
        iterated = source.loops.get(number)
        is_input = iterated is not None and not is_container(iterated, self._names, place == CELL)
        waiting = time.host
        if iterated is not None and not is_at_hand(iterated, self._names, place == CELL):
            waiting -= time.from_above  # it was computed there, as far as is known
        waited_for_input = max(waiting - waited, 0.0)
        if waited_for_input < time.hits * _NEXT:
            is_input = False
        return LineTiming(
            line=number,
            source=source.lines[number - source.first],
            hits=time.hits,
            gpu=time.gpu,
            host=time.host,
            syncs=sum(each.count for each in synchronizations),
            sync_time=waited,
            at_most=time.at_most,
            per_device=time.per_device,
            synchronizations=tuple(sorted(synchronizations, key=lambda each: -(each.time or 0.0))),
            input_wait=waited_for_input if is_input else None,
            interval=time.interval,
            rough=time.is_rough,
        )

    def _unnamed_waits(self, time: LineTime, named: Collection[str]) -> list[Synchronization]:
        """Return the waits that are known by times alone; ``named`` are the calls that are known.

        The time of a loop's ``for`` is a wait for its next value, and of an ``await`` other tasks'.
        """
        found: dict[str, list[float]] = {}
        for line, seconds in time.unnamed:
            source = self._sources[line.source]
            call = None if line.number in source.loops else written_call(_statement(source, line))
            if call is not None:
                found.setdefault(UNNAMED if call in named else call, []).append(seconds)
        return [
            Synchronization(call, len(times), fsum(times), at_most=True)
            for call, times in found.items()
        ]

    def _measuring_cost(self, wall: float) -> MeasuringCost:
        own = self._timer.own + self._tracer.skipped * self._cost.call
        return MeasuringCost(own / wall, self._tracer.slowed * self._cost.call / wall)


def _statement(source: Source, first: Line) -> list[str]:
    """Return the text of the statement that begins at a line."""
    return [
        text
        for number, text in enumerate(source.lines, source.first)
        if source.statements.get(number, number) == first.number
    ]


class TracingCost(NamedTuple):
    """What tracing takes beside what `LineTimer` measures of itself. Seconds."""

    #: At the end of a line, of one that is written down first, and of a short run that is counted
    #: without a boundary.
    line: float = 0.0
    marked_line: float = 0.0
    short_line: float = 0.0
    #: For a call of other code.
    call: float = 0.0


#: What `tracing_cost` runs: lines that take no time.
_PASSES, _LINES = 200, 3
_EMPTY = f"for i in range({_PASSES}):\n    x = 1\n    y = 2"
_CALLING = f"for i in range({_PASSES}):\n    f()\n    y = 2"


def tracing_cost() -> TracingCost:
    """Measure what tracing takes.

    The least of some runs of an empty loop: what is subtracted is never too much by other load.
    """
    lines, marked, short, calling = zip(
        *(
            (
                _time_per_line(_EMPTY, _PASSES + 1, inf),  # with each boundary
                _time_per_line(_EMPTY, _PASSES + 1, 0.0),
                _time_per_line(_EMPTY, 1, inf),
                _time_per_line(_CALLING, 1, inf),
            )
            for _ in range(3)
        ),
        strict=True,
    )
    call = _LINES * (min(calling) - min(short))
    return TracingCost(min(lines), min(marked), min(short), max(call, 0.0))


def _time_per_line(source: str, all_marked: int, long: float) -> float:
    """Return what a line of a loop takes that is traced; of short runs where there are any.

    ``long``: the seconds from which a run is long.
    """
    tree = ast.parse(source)
    code = compile(tree, "<empty>", "exec")
    timer = LineTimer(all_marked=all_marked)
    timer.marks.note = "no GPU"
    timer.shared.long = long
    tracer = LineTracer([cell_source([code], source, 1, tree)], timer, by_statement=True)
    try:
        tracer.start()
        exec(code, {"f": lambda: None})
    finally:
        tracer.stop()
    timer.finish()
    if timer.short_runs:
        return timer.short_host / timer.short_runs
    lines = timer.times().values()
    hits = sum(line.hits for line in lines)
    return fsum(line.host for line in lines) / hits if hits else 0.0


def with_kernels(timing: CudaTiming, work: Mapping[Line | None, LineWork]) -> CudaTiming:
    """Return ``timing`` with what the lines did in one more run, under the profiler."""
    lines = timing.lines
    assert lines is not None
    cell, *functions = (
        replace(
            source,
            lines=tuple(_with_work(one, work.get(Line(i, one.line))) for one in source.lines),
        )
        for i, source in enumerate((lines.cell, *lines.functions))
    )
    # Of lines that ran in that run alone, too.
    shown = {Line(CELL, line.line) for line in cell.lines}
    rest = [
        each
        for line, each in work.items()
        if line is None or (line.source == CELL and line not in shown)
    ]
    between = None
    if lines.between is not None:
        of_rest = LineWork(
            busy=fsum(each.busy for each in rest),
            kernels=sum(each.kernels for each in rest),
            kernel_time=fsum(each.kernel_time for each in rest),
        )
        between = _with_work(lines.between, of_rest)
    lines = replace(
        lines,
        cell=cell,
        functions=tuple(functions),
        between=between,
        verdict=verdict(cell.lines, timing, lines.cost) if lines.complete else None,
    )
    return replace(timing, lines=lines)


def without_kernels(timing: CudaTiming, reason: str) -> CudaTiming:
    """Return ``timing`` with a note why its lines have no busy times."""
    assert timing.lines is not None
    notes = (*timing.lines.notes, f"no busy times of lines: {reason}")
    return replace(timing, lines=replace(timing.lines, notes=notes))


def _with_work(line: LineTiming, work: LineWork | None) -> LineTiming:
    work = work or LineWork()
    return replace(line, busy=work.busy, kernels=work.kernels, kernel_time=work.kernel_time)


def _on_devices(
    lines: tuple[LineTiming, ...], devices: Mapping[int, object]
) -> tuple[LineTiming, ...]:
    """Return the lines with the times of the devices that the cell used."""
    return tuple(
        replace(line, per_device={i: s for i, s in line.per_device.items() if i in devices})
        for line in lines
    )


def _between(lines: Iterable[LineTiming], timing: CudaTiming) -> LineTiming:
    """Return what is left of the cell's times for none of its lines."""
    lines = list(lines)
    host = timing.wall.median if timing.host is None else timing.host.median
    gpu = None
    if timing.gpu is not None:
        gpu = max(timing.gpu.median - fsum(line.gpu or 0.0 for line in lines), 0.0)
    return LineTiming(
        line=0,
        source=BETWEEN,
        hits=0,
        gpu=gpu,
        host=max(host - fsum(line.host for line in lines), 0.0),
        syncs=0,
        sync_time=0.0,
        at_most=gpu is not None and timing.gpu_at_most,
    )
