"""The lines of a cell while it is timed: traced, timed, and put together as a `LineTimings`."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import fsum

from gpumagic.cells.line_sources import CodeLine, CodeSource, cell_source
from gpumagic.cells.line_tracer import LineTracer
from gpumagic.render.units import share
from gpumagic.results.source_table import BETWEEN
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.line_timings import LineTiming, LineTimings, SourceTimings
from gpumagic.system import text
from gpumagic.timing.lines.line_clock import Busy, LineClock, TimeSpent, surely_worked
from gpumagic.timing.lines.verdict import verdict
from gpumagic.timing.run_times import Times

#: The part of the wall time that measuring may take before it is said.
_COST = 0.02
_SLOWED = (
    "; before Python 3.12 tracing also slows down the Python code that lines call: their host "
    "times are upper bounds"
)


class LineProfiler:
    """Measures the lines of ``sources``, the first of which is the cell's.

    ``prepare``, ``start``, the cell, ``stop``, ``refined``, ``added_to``, ``close``. None of them
    raises an exception: a failure leaves the lines without GPU times, and the result says so.
    """

    def __init__(self, sources: Sequence[CodeSource]) -> None:
        self._sources = sources
        self._clock = LineClock()
        self._tracer = LineTracer(sources, self._clock.switch, TimeSpent)
        #: Why there are no GPU times of lines: the first error.
        self.note: str | None = None

    def prepare(self) -> None:
        """Do what takes time, before the clocks of the cell start."""
        with self._noting():
            self._clock.tracing = tracing_cost()
            self._clock.prepare()

    def start(self) -> None:
        """Begin to trace, when the clocks have started."""
        with self._noting():
            self._clock.start()
            self._tracer.start()

    def stop(self, *, failed: bool = False) -> None:
        """Stop tracing, before the clocks stop. ``failed``: the cell has raised an exception."""
        with self._noting():
            self._tracer.stop(failed=failed)
            self._clock.stop()

    def close(self) -> None:
        """Stop tracing, whatever has interrupted the other steps, and free the events."""
        self._tracer.stop(failed=True)
        self._clock.release()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.note = self.note or f"no GPU time of lines: {text.named(error)}"

    def refined(self, times: Times) -> Times:
        """Return the times of the cell, with what its lines show of them.

        Lines may show work that has left no sign at the end of the cell, on which devices, and more
        of what the GPU worked at least.
        """
        with self._noting():
            self._clock.finish()
            cell = self._sources[0].ran() if self.note is None else []
            return times.with_work(surely_worked(cell))
        return times

    def added_to(self, timing: CudaTiming) -> CudaTiming:
        """Return the result of the cell with its lines, or with a note why there are none."""
        with self._noting():
            if self._tracer.note is None or any(source.ran() for source in self._sources):
                return replace(timing, lines=self._lines(timing))
        return replace(timing, notes=(*timing.notes, self._tracer.note or str(self.note)))

    def _lines(self, timing: CudaTiming) -> LineTimings:
        has_gpu = timing.gpu is not None and timing.gpu_seen and self.note is None
        known = timing.per_device if has_gpu else {}
        cell, *functions = (_of_source(source, has_gpu, known) for source in self._sources)
        cost = self._clock.own + self._clock.boundaries * self._clock.tracing
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
            verdict=verdict(cell.lines, loops, timing, part) if complete else None,
            notes=tuple(filter(None, notes)),
        )

    def _cost_note(self, part: float) -> str | None:
        """Return what measuring has cost, if that matters."""
        took = f"measuring the lines took {share(part, 1)} of the wall time"
        if self._tracer.has_slowed:
            return took + _SLOWED
        bounds = "; the host times of short lines are upper bounds"
        return took + bounds if part > _COST else None


def _of_source(source: CodeSource, has_gpu: bool, known: Container[int]) -> SourceTimings:
    """Return the times of a source's lines, the GPU's of the ``known`` devices."""

    def of_line(line: CodeLine) -> LineTiming:
        spent: TimeSpent = line.figures
        together = spent.busy.get(None, Busy())
        devices = {i: busy for i, busy in spent.busy.items() if i is not None and i in known}
        return LineTiming(
            line=line.number,
            source=source.text[line.number - source.first],
            hits=line.hits,
            gpu=together.most if has_gpu else None,
            host=spent.host,
            syncs=min(len(spent.sure_waits), line.hits),
            sync_time=fsum(spent.sure_waits),
            at_most=has_gpu and together.at_most,
            per_device={i: busy.most for i, busy in devices.items()},
            bounds=tuple(i for i, busy in devices.items() if busy.at_most),
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
    """Return the seconds that tracing takes at a boundary beside what `LineClock` measures itself.

    The least of some runs of an empty loop: what is subtracted is never too much by other load.
    """
    return min(_cost_of_a_line() for _ in range(5))


def _cost_of_a_line() -> float:
    tree = ast.parse(_EMPTY)
    code = compile(tree, "<empty>", "exec")
    profiler = LineProfiler([source := cell_source([code], _EMPTY, 1, tree)])
    try:
        profiler.start()
        exec(code, {})
    finally:
        profiler.close()
    ran = source.ran()  # nothing under another tracer
    return fsum(line.figures.host for line in ran) / max(sum(line.hits for line in ran), 1)
