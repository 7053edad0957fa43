"""Measure the change of GPU memory by each line of a cell: read the counters at each line.

One scope of the ledger serves the lines and the cell: the lines' intervals add up to the cell's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpumagic.cells.line_sources import Line, Source
from gpumagic.cells.line_tracer import LineTracer
from gpumagic.cells.measured_block import Measured
from gpumagic.memory.measurement import memory_delta, unreadable
from gpumagic.memory.peak_ledger import LEDGER, Interval, Scope
from gpumagic.results.lines import LineMemory, LineReport, SourceLines
from gpumagic.results.memory import DeviceMemoryDelta


class _LineMemory:
    """The change of memory by a line, summed over its runs, by ordinal of a device. Bytes."""

    def __init__(self) -> None:
        self.by_device: dict[int, LineMemory] = {}
        #: The number of the run that goes on, and what was allocated at its beginning.
        self._run = 0
        self._start: dict[int, int] = {}

    def begin(self, run: int, allocated: Mapping[int, int]) -> None:
        """Begin a run of the line; or go on with it, if that is the one that runs."""
        if run != self._run:
            self._run, self._start = run, dict(allocated)

    def add(self, ordinal: int, interval: Interval) -> None:
        """Add a part of the run."""
        start, end, peak = interval
        before = self.by_device.get(ordinal, LineMemory())
        # What the run freed before its highest point was allocated at its beginning.
        peak -= self._start.setdefault(ordinal, start.allocated)
        self.by_device[ordinal] = LineMemory(
            before.change + end.allocated - start.allocated, max(before.peak, peak)
        )


class _MemoryCounter:
    """Counts the allocator's memory line by line, in one scope of the ledger.

    It is the `LineCounter` of a `LineTracer`; the figures of a line are its `_LineMemory`.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._lines: tuple[Line, ...] = ()
        self._allocated: dict[int, int] = {}
        #: By ordinal, what happened in the whole cell.
        self.cell: dict[int, Interval] = {}

    def switch(self, lines: tuple[Line, ...]) -> None:
        for ordinal, interval in LEDGER.restart(self._scope).items():
            earlier = self.cell.get(ordinal)
            self.cell[ordinal] = interval if earlier is None else earlier.and_then(interval)
            self._allocated[ordinal] = interval.end.allocated
            for line in () if interval.idle else self._lines:
                line.figures.add(ordinal, interval)
        for line in lines:
            if line.figures is None:
                line.figures = _LineMemory()
            line.figures.begin(line.hits, self._allocated)
        self._lines = lines


def source_lines(source: Source) -> SourceLines:
    """Return a source with its figures as a part of the result."""
    ran = source.ran()
    devices: dict[int, dict[int, LineMemory]] = {}
    for line in ran:
        if line.figures is not None:
            for ordinal, memory in line.figures.by_device.items():
                devices.setdefault(ordinal, {})[line.number] = memory
    return SourceLines(
        source.name,
        source.first,
        source.text,
        dict(sorted(devices.items())),
        ran=bool(ran),
        empty=not source.codes,
        runs={line.number: line.hits for line in ran},
    )


class LineMeasurement(Measured["Scope | str", LineReport]):
    """A context manager that measures what each line of ``sources`` does, also when one raises.

    The first source is the cell's, which runs in the body.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__()
        self._sources = sources

    def begin(self) -> Scope | str:
        """Open a scope of the ledger and trace; return why not where the scope cannot be opened."""
        try:
            scope = LEDGER.open()
        except Exception as error:  # a pluggable allocator without counters; the result says so
            return unreadable(error)
        self._counter = _MemoryCounter(scope)
        self._tracer = LineTracer(self._sources, self._counter)
        try:
            self._tracer.start()
        except BaseException:
            self._drop(scope)
            raise
        return scope

    def end(self, block: Scope | str, *, partial: bool) -> LineReport:
        """Stop tracing; return what each line did, and the cell as a whole."""
        if isinstance(block, str):
            sources = tuple(map(source_lines, self._sources))
            return LineReport(memory_delta(block, partial=partial), sources)
        try:
            self._tracer.stop(failed=partial)
            cell = memory_delta(self._cell(), partial=partial)
        finally:
            self._drop(block)
        sources = tuple(map(source_lines, self._sources))
        return LineReport(cell, sources, (self._tracer.note,) if self._tracer.note else ())

    def _drop(self, scope: Scope) -> None:
        self._tracer.stop(failed=True)
        LEDGER.drop(scope)

    def _cell(self) -> dict[int, DeviceMemoryDelta] | str:
        """Read the counters once more; return what the whole cell did, or why that is unknown."""
        try:
            self._counter.switch(())
        except Exception as failure:
            return unreadable(failure)
        return {ordinal: interval.delta() for ordinal, interval in self._counter.cell.items()}
