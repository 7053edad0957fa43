"""Measure the change of GPU memory by each line of a cell: read the counters at each line.

One scope of the ledger serves the lines and the cell: the lines' intervals add up to the cell's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpumagic.cells.line_sources import Source
from gpumagic.cells.line_tracer import Line, LineTracer
from gpumagic.cells.measured_block import Measured
from gpumagic.cells.pauses import Left
from gpumagic.memory.measurement import memory_delta, unreadable
from gpumagic.memory.peak_ledger import LEDGER, Interval, Scope
from gpumagic.memory.retained import EventLog, Living, Range
from gpumagic.results import LineMemory, LineReport, MemoryDelta, SourceLines


class _Reading(NamedTuple):
    """The counters of a device at one time; the totals are since the cell began."""

    allocated: int = 0
    total_allocated: int = 0
    total_freed: int = 0
    allocations: int = 0


class _LineTotal:
    """The change of a device's memory by a line, summed over its runs."""

    def __init__(self) -> None:
        self.change = self.allocated = self.freed = self.peak = 0
        #: The allocations that it made, by their numbers.
        self.ranges: list[Range] = []

    def add(self, start: _Reading, end: _Reading, peak: int) -> None:
        """Add a run of the line."""
        self.change += end.allocated - start.allocated
        self.allocated += end.total_allocated - start.total_allocated
        self.freed += end.total_freed - start.total_freed
        self.peak = max(self.peak, peak - start.allocated)
        if end.allocations == start.allocations:
            return
        if self.ranges and self.ranges[-1][1] == start.allocations:
            self.ranges[-1] = (self.ranges[-1][0], end.allocations)
        else:
            self.ranges.append((start.allocations, end.allocations))

    def result(self, living: Living | None) -> LineMemory:
        """Return the sum; ``living`` are the allocations that are alive, if that is known."""
        stayed = None if living is None else living.bytes(self.ranges)
        return LineMemory(self.change, self.peak, self.allocated, self.freed, stayed)


class _CallMemory:
    """The counters of a call of traced code, by ordinal of a device. Bytes."""

    def __init__(self) -> None:
        #: The reading at the beginning of the line that runs.
        self.start: dict[int, _Reading] = {}
        #: The highest allocated bytes, of the line that runs and of the whole call.
        self.peak: dict[int, int] = {}
        self.highest: dict[int, int] = {}
        #: By line, what the lines of the statement that runs have allocated themselves in it so
        #: far: they may come again, in the next pass of a comprehension or after an ``await``.
        self.carried: dict[int, dict[int, int]] = {}


class _MemoryCounter:
    """Counts the allocator's memory line by line, in one scope of the ledger."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        #: By ordinal: the last reading, and what happened in the whole cell.
        self.now: dict[int, _Reading] = {}
        self.cell: dict[int, Interval] = {}
        #: By line and ordinal.
        self.totals: dict[tuple[Line, int], _LineTotal] = {}
        #: How often each line ran; the passes of a comprehension are one run.
        self.runs: Counter[Line] = Counter()

    def new_record(self) -> _CallMemory:
        return _CallMemory()

    def read(self, running: _CallMemory | None) -> None:
        for ordinal, interval in LEDGER.restart(self._scope).items():
            start, end, peak = interval
            before = self.now.get(ordinal, _Reading())
            self.now[ordinal] = _Reading(
                end.allocated,
                before.total_allocated + end.total_allocated - start.total_allocated,
                before.total_freed + end.total_freed - start.total_freed,
                before.allocations + end.allocations - start.allocations,
            )
            earlier = self.cell.get(ordinal)
            self.cell[ordinal] = interval if earlier is None else earlier.and_then(interval)
            if running is not None:
                _update_peak(running.peak, ordinal, peak)
                _update_peak(running.highest, ordinal, peak)

    def begin_statement(self, call: _CallMemory) -> None:
        call.carried = {}

    def begin_line(self, call: _CallMemory, line: Line, *, again: bool) -> None:
        call.start = dict(self.now)
        call.peak = {ordinal: reading.allocated for ordinal, reading in self.now.items()}

    def end_line(self, call: _CallMemory, line: Line, *, recursive: bool) -> None:
        if line.number not in call.carried:
            self.runs[line] += 1
        before = call.carried.setdefault(line.number, {})
        for ordinal, end in self.now.items():
            start, carried = call.start.get(ordinal, _Reading()), before.get(ordinal, 0)
            before[ordinal] = carried + end.allocated - start.allocated
            if recursive:
                continue
            peak = call.peak.get(ordinal, end.allocated) + carried
            # Not by the totals alone, which other allocators than torch's own do not count.
            if end != start or peak > start.allocated:
                self.totals.setdefault((line, ordinal), _LineTotal()).add(start, end, peak)

    def end_call(self, call: _CallMemory, caller: _CallMemory | None, how: Left) -> None:
        if caller is not None:
            for ordinal, peak in call.highest.items():
                _update_peak(caller.peak, ordinal, peak)
                _update_peak(caller.highest, ordinal, peak)
        call.highest = {}


def _update_peak(peaks: dict[int, int], ordinal: int, peak: int) -> None:
    peaks[ordinal] = max(peaks.get(ordinal, 0), peak)


class _Profile:
    """The measurement of a cell line by line."""

    def __init__(self, sources: Sequence[Source], scope: Scope) -> None:
        self._sources = sources
        self._scope = scope
        self._counter = _MemoryCounter(scope)
        self._tracer = LineTracer(sources, self._counter)
        self._log: EventLog | None = None
        self._notes: list[str] = []

    def start(self) -> None:
        """Begin to trace and to log."""
        self._log = EventLog.begin()
        self._tracer.start()

    def drop(self) -> None:
        """End the scope without a result."""
        LEDGER.drop(self._scope)

    def end(self, *, partial: bool) -> LineReport:
        """Stop tracing, and return what each line did."""
        try:
            self._tracer.stop()
            if self._tracer.is_forked:
                delta = memory_delta("this process was forked by the cell", partial=partial)
                return LineReport(delta, tuple(map(source_lines, self._sources)))
            cell = self._cell(partial)
            living = self._living()
        finally:
            self.drop()
        of_sources = [source.note for source in self._sources if source.note is not None]
        notes = (*self._tracer.notes, *of_sources, *self._notes)
        ran = self._tracer.ran
        sources = tuple(
            source_lines(source, self._devices(i, living), ran=i in ran, runs=self._runs(i))
            for i, source in enumerate(self._sources)
        )
        lines = sources[0].devices
        changes = {i: sum(each.change for each in found.values()) for i, found in lines.items()}
        rest = {i: delta.allocated - changes.get(i, 0) for i, delta in cell.devices.items()}
        return LineReport(cell, sources, {i: change for i, change in rest.items() if change}, notes)

    def _cell(self, partial: bool) -> MemoryDelta:
        """Read the counters once more; return what the whole cell did."""
        try:
            # The log, by which blocks are counted, contains what came after the last traced line.
            self._counter.read(None)
        except Exception as failure:
            return memory_delta(unreadable(failure), partial=partial)
        found = {ordinal: interval.delta() for ordinal, interval in self._counter.cell.items()}
        return memory_delta(found, partial=partial)

    def _living(self) -> Mapping[int, Living]:
        """End the log; return by ordinal the allocations that are alive, where that is known."""
        log, self._log = self._log, None
        if log is None:
            if self._counter.totals:
                self._notes.append(
                    "what stayed is not known: CUDA was initialised in the cell, or its allocator "
                    "keeps no log"
                )
            return {}
        living: Mapping[int, Living] = {}
        try:
            living = log.end({i: reading.allocations for i, reading in self._counter.now.items()})
        except RuntimeError as error:
            self._notes.append(f"the allocator's event log cannot be read: {error}")
        if log.disturbed:
            self._notes.append(
                "what stayed is not known: a recording of the allocator's history was begun or "
                "ended in the cell"
            )
        return living

    def _runs(self, source: int) -> Mapping[int, int]:
        runs = self._counter.runs
        return {line.number: runs[line] for line in sorted(runs) if line.source == source}

    def _devices(
        self, source: int, living: Mapping[int, Living]
    ) -> Mapping[int, Mapping[int, LineMemory]]:
        found: dict[int, dict[int, LineMemory]] = {}
        for (line, ordinal), total in sorted(
            self._counter.totals.items(), key=lambda item: item[0]
        ):
            if line.source == source:
                result = total.result(living.get(ordinal))
                found.setdefault(ordinal, {})[line.number] = result
        return dict(sorted(found.items()))


def source_lines(
    source: Source,
    devices: Mapping[int, Mapping[int, LineMemory]] | None = None,
    *,
    ran: bool = False,
    runs: Mapping[int, int] | None = None,
) -> SourceLines:
    """Return a source as a part of the result."""
    empty = not source.codes
    return SourceLines(
        source.name, source.first, source.lines, devices or {}, ran, empty=empty, runs=runs or {}
    )


class LineMeasurement(Measured["_Profile | str", LineReport]):
    """A context manager that measures what each line of ``sources`` does, also when one raises.

    The first source is the cell's, which runs in the body.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__()
        self._sources = sources

    def begin(self) -> _Profile | str:
        """Open a scope of the ledger and trace; return why not where the scope cannot be opened."""
        try:
            profile = _Profile(self._sources, LEDGER.open())
        except Exception as error:  # a pluggable allocator without counters; the result says so
            return unreadable(error)
        try:
            profile.start()
        except BaseException:
            profile.drop()
            raise
        return profile

    def end(self, stretch: _Profile | str, *, partial: bool) -> LineReport:
        """Return what has happened since `begin`."""
        if isinstance(stretch, str):
            sources = tuple(map(source_lines, self._sources))
            return LineReport(memory_delta(stretch, partial=partial), sources)
        return stretch.end(partial=partial)
