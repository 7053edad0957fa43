"""The lines of a cell while it is timed: traced, marked, put together, and what limits the cell."""

from __future__ import annotations

import ast
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import fsum
from typing import Any

from gpumagic.cells.line_sources import CodeLine, CodeSource, cell_source
from gpumagic.cells.line_tracer import LineTracer
from gpumagic.results.lines import BETWEEN, LineTiming, LineTimings, SourceTimings
from gpumagic.results.timing import CudaTiming, is_bound
from gpumagic.system import text
from gpumagic.timing.event_timer import CLOCKS, Clocks
from gpumagic.timing.line_times import LineTime, LineTimes, surely_worked
from gpumagic.timing.summary import Times, summarize

#: The part of the wall time that measuring may take before it is said.
_COST = 0.02
#: The part that distorts the host times of short lines.
_LARGE_COST = 0.2
#: A part of the wall time that is worth a verdict.
_LARGE = 0.3
#: A part of the wall time that leaves no doubt.
_NEARLY_ALL = 0.9
#: A line with this part of what is said is named for it.
_MOST = 0.5
_SLOWED = (
    "; before Python 3.12 tracing also slows down the Python code that lines call: their host "
    "times are upper bounds"
)


class LineProfiler:
    """Measures the lines of ``sources``, the first of which is the cell's.

    ``prepare``, ``start``, the cell, ``stop``, ``result``, ``close``. None of them raises an
    exception: a failure leaves the lines without GPU times, and the result says so.
    """

    def __init__(self, sources: Sequence[CodeSource], clocks: Clocks = CLOCKS) -> None:
        self._sources = sources
        self._times = LineTimes(clocks)
        self._tracer = LineTracer(sources, self._times.switch, LineTime)
        #: Why there are no GPU times of lines: the first error.
        self.note: str | None = None

    def prepare(self) -> None:
        """Do what takes time, before the clocks of the cell start."""
        with self._noting():
            self._times.tracing = tracing_cost()
            self._times.prepare()

    def start(self) -> None:
        """Begin to trace, when the clocks have started."""
        with self._noting():
            self._times.start()
            self._tracer.start()

    def stop(self, *, failed: bool = False) -> None:
        """Stop tracing, before the clocks stop. ``failed``: the cell has raised an exception."""
        with self._noting():
            self._tracer.stop(failed=failed)
            self._times.stop()

    def close(self) -> None:
        """Stop tracing, whatever has interrupted the other steps, and free the events."""
        self._tracer.stop(failed=True)
        self._times.release()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.note = self.note or f"no GPU time of lines: {text.named(error)}"

    def result(self, times: Times, **fields: Any) -> CudaTiming:
        """Summarize the run with its lines, or with a note why there are none.

        Lines may show work that has left no sign at the end of the cell, on which devices, and more
        of what the GPU worked at least. ``fields`` are those of `summarize`.
        """
        with self._noting():
            self._times.finish()
            cell = self._sources[0].ran() if self.note is None else []
            times = times.with_work(*surely_worked(cell, times.readings))
        timing = summarize([times], **fields)
        with self._noting():
            if self._tracer.note is None or any(source.ran() for source in self._sources):
                return replace(timing, lines=self._lines(timing))
        return replace(timing, notes=(*timing.notes, self._tracer.note or str(self.note)))

    def _lines(self, timing: CudaTiming) -> LineTimings:
        has_gpu = timing.gpu is not None and timing.gpu_seen and self.note is None
        known = timing.per_device if has_gpu else {}
        cell, *functions = (_of_source(source, has_gpu, known) for source in self._sources)
        cost = self._times.own + self._times.boundaries * self._times.tracing
        part = min(cost / timing.wall.median, 1.0) if timing.wall.median > 0 else 0.0
        loops = {line.number for line in self._sources[0].ran() if line.loop}
        complete = self._tracer.note is None
        notes = (
            self._tracer.note,
            self.note if timing.gpu is not None else None,
            self._cost_note(part),
        )
        return LineTimings(
            cell=cell,
            functions=tuple(functions),
            between=_between(cell.lines, timing, has_gpu),
            verdict=verdict(cell.lines, functions, loops, timing, part) if complete else None,
            notes=tuple(filter(None, notes)),
        )

    def _cost_note(self, part: float) -> str | None:
        """Return what measuring has cost, if that matters."""
        took = f"measuring the lines took {100 * part:.2g} % of the wall time"
        if self._tracer.has_slowed:
            return took + _SLOWED
        if part > _LARGE_COST:
            return f"{took}; the host times of short lines are upper bounds"
        return took if part > _COST else None


def _of_source(source: CodeSource, has_gpu: bool, known: Container[int]) -> SourceTimings:
    """Return the times of a source's lines, the GPU's of the ``known`` devices."""

    def of_line(line: CodeLine) -> LineTiming:
        times: LineTime = line.figures
        devices = {i: both for i, both in times.per_device.items() if i in known}
        return LineTiming(
            line=line.number,
            source=source.text[line.number - source.first],
            hits=line.hits,
            gpu=times.gpu if has_gpu else None,
            host=times.host,
            syncs=min(len(times.sure_waits), line.hits),
            sync_time=fsum(times.sure_waits),
            at_most=has_gpu and times.at_most,
            per_device={i: most for i, (most, _) in devices.items()},
            bounds=tuple(i for i, both in devices.items() if is_bound(*both)),
        )

    lines = tuple(map(of_line, source.ran()))
    return SourceTimings(source.name, source.first, source.text, lines, empty=not source.codes)


def _between(lines: Sequence[LineTiming], timing: CudaTiming, has_gpu: bool) -> LineTiming:
    """Return what is left of the cell's times for none of its lines."""
    host = timing.wall if timing.host is None else timing.host
    gpu = None
    if has_gpu and timing.gpu is not None:
        gpu = max(timing.gpu.median - fsum(line.gpu or 0.0 for line in lines), 0.0)
    return LineTiming(
        line=0,
        source=BETWEEN,
        gpu=gpu,
        host=max(host.median - fsum(line.host for line in lines), 0.0),
        at_most=gpu is not None and timing.gpu_at_most,
    )


_EMPTY = "for i in range(200):\n    x = 1\n    y = 2"


@cache
def tracing_cost() -> float:
    """Return the seconds that tracing takes at a boundary beside what `LineTimes` measures itself.

    The least of some runs of an empty loop: what is subtracted is never too much by other load.
    """
    return min(_cost_of_a_line() for _ in range(5))


def _cost_of_a_line() -> float:
    tree = ast.parse(_EMPTY)
    code = compile(tree, "<empty>", "exec")
    source, times = cell_source([code], _EMPTY, 1, tree), LineTimes()
    tracer = LineTracer([source], times.switch, LineTime)
    times.start()
    try:
        tracer.start()
        exec(code, {})
    finally:
        tracer.stop()
    ran = source.ran()  # nothing under another tracer
    return fsum(line.figures.host for line in ran) / max(sum(line.hits for line in ran), 1)


# --- the verdict -------------------------------------------------------------------------------


def verdict(
    lines: Sequence[LineTiming],
    functions: Sequence[SourceTimings],
    loops: Collection[int],
    timing: CudaTiming,
    cost: float,
) -> str | None:
    """Return what limits the cell; None where the figures do not show it.

    Args:
        lines: The cell's lines.
        functions: The lines of functions that they call.
        loops: The lines that are heads of ``for`` loops.
        timing: The cell's times.
        cost: The part of the wall time that measuring the lines took.
    """
    wall = timing.wall.median
    if timing.gpu is None or wall <= 0 or timing.partial or not lines:
        return None
    certain = {line.line: line.gpu for line in lines if line.gpu and not line.at_most}
    busy = fsum(certain.values())
    if busy >= _NEARLY_ALL * wall:
        evidence = f"GPU-bound: the GPU is busy for {_percent(busy / wall)} of the wall time"
        longest = max(certain, key=certain.__getitem__)
        is_most = certain[longest] >= _MOST * busy
        return f"{evidence}, most of it with line {longest}" if is_most else evidence
    waiting = max(lines, key=lambda line: line.sync_time)
    loop = max(lines, key=lambda line: _starved(line, loops))
    starved = _starved(loop, loops)
    if waiting.sync_time >= max(_LARGE * wall, starved):
        times = "once" if waiting.syncs == 1 else f"{waiting.syncs:,} times"
        part = _percent(waiting.sync_time / wall)
        return f"{part} of the wall time is waiting for the GPU in line {waiting.line} ({times})"
    if starved - cost * wall >= _LARGE * wall:
        part = _percent(starved / wall)
        return f"the GPU may wait for input: line {loop.line}, {part} of the wall time"
    slowest = max(lines, key=_blamable)
    if _blamable(slowest) - cost * wall >= _LARGE * wall:
        part = _percent(slowest.host / wall)
        where = _within(slowest, functions)
        takes = f"line {slowest.line} takes {part} of the wall time{where}"
        return f"{takes}: it may wait for the GPU, or the GPU may be idle then"
    return None


def _within(slow: LineTiming, functions: Sequence[SourceTimings]) -> str:
    """Return the line of a function that has most of a slow line's time, as a clause, if any."""
    for function in functions:
        for line in function.lines:
            if _blamable(line) >= _MOST * slow.host:
                return f", most of it in line {line.line} of {function.name}"
    return ""


def _with_idle_gpu(line: LineTiming) -> float:
    """Return the host's seconds in a line in which the GPU may have been idle."""
    return min(line.host - line.sync_time, line.gpu or 0.0) if line.at_most else 0.0


def _starved(line: LineTiming, loops: Collection[int]) -> float:
    """Return the seconds in which a loop waits for its next value, and the GPU may, too."""
    return _with_idle_gpu(line) if line.line in loops else 0.0


def _blamable(line: LineTiming) -> float:
    """Return `_with_idle_gpu`; 0 for a line that waited, since the rest may be a wait, too."""
    return 0.0 if line.syncs else _with_idle_gpu(line)


def _percent(part: float) -> str:
    return f"{100 * min(part, 1.0):.0f} %"
