"""Measure the change of GPU memory by line: ``%%gpumem --lines``.

The counters are read at each line, in one scope of the ledger for all lines: their intervals add up
to what the cell's own scope has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpumagic.cells.line_sources import CodeLine, CodeSource
from gpumagic.cells.line_tracer import LineTracer
from gpumagic.cells.measured_block import Measured
from gpumagic.memory.exact_peaks import LEDGER, Scope
from gpumagic.memory.measurement import Measurement
from gpumagic.results.memory.line_memory import LineMemory, LineReport, SourceLines
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta, only_changed


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

    def add(self, ordinal: int, change: DeviceMemoryDelta) -> None:
        """Add a part of the run."""
        start = change.allocated_now - change.allocated
        # What the run freed before its highest point was allocated at its beginning.
        peak = start + change.peak - self._start.setdefault(ordinal, start)
        before = self.by_device.get(ordinal, LineMemory())
        self.by_device[ordinal] = LineMemory(
            before.change + change.allocated, max(before.peak, peak)
        )


def _source_lines(source: CodeSource) -> SourceLines:
    """Return a source with its figures as a part of the result."""
    ran = source.ran()
    devices: dict[int, dict[int, LineMemory]] = {}
    for line in ran:
        for ordinal, memory in line.figures.by_device.items():
            devices.setdefault(ordinal, {})[line.number] = memory
    return SourceLines(
        source.name,
        source.first,
        source.text,
        dict(sorted(devices.items())),
        {line.number: line.hits for line in ran},
        empty=not source.codes,
    )


class LineMeasurement(Measured[Scope, LineReport]):
    """A context manager that measures what each line of ``sources`` does, also when one raises.

    The first source is the cell's, which runs in the body. The cell has a scope of its own.
    """

    def __init__(self, sources: Sequence[CodeSource]) -> None:
        super().__init__()
        self._sources = sources

    def begin(self) -> Scope:
        """Measure the cell, and trace its lines if the counters can be read."""
        cell, self._scope = LEDGER.open(), LEDGER.open()
        #: The lines that run now.
        self._lines: tuple[CodeLine, ...] = ()
        self._tracer = LineTracer(self._sources, self._switch, _LineMemory)
        try:
            if self._scope.error is None:
                self._tracer.start()
        except BaseException:
            self.end(cell, partial=True)
            raise
        return cell

    def _switch(self, lines: tuple[CodeLine, ...]) -> None:
        """Add what changed to the lines that ran until now; ``lines`` run from now on."""
        changes = LEDGER.restart(self._scope)
        for ordinal, change in only_changed(changes).items():
            for line in self._lines:
                line.figures.add(ordinal, change)
        allocated = {ordinal: change.allocated_now for ordinal, change in changes.items()}
        for line in lines:
            line.figures.begin(line.hits, allocated)
        self._lines = lines

    def end(self, cell: Scope, *, partial: bool) -> LineReport:
        """Stop tracing; return what each line did, and the cell as a whole."""
        try:
            self._tracer.stop(failed=partial)
            with suppress(Exception):  # the cell's result says why nothing is known
                self._switch(())
        finally:
            LEDGER.drop(self._scope)
            whole = Measurement().end(cell, partial=partial)
        sources = tuple(map(_source_lines, self._sources))
        notes = () if self._tracer.note is None else (self._tracer.note,)
        return LineReport(whole, sources, notes)
