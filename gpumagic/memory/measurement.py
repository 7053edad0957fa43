"""Measure the change of GPU memory by a block, a function or a statement.

The figures are the counters of torch's allocator: exact, without synchronising. Nothing here
imports torch, makes a context, starts a thread, collects garbage or empties a cache.

By line, the counters are read at each line, in one scope of the ledger for all lines: their
intervals add up to what the cell's own scope has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar, cast, overload

from gpumagic.cells.line_sources import CodeLine, CodeSource
from gpumagic.cells.line_tracer import LineTracer
from gpumagic.cells.measured_block import Measured, decorated
from gpumagic.cuda import device_table, failure, torch_cuda
from gpumagic.errors import RegressionError, SpecError
from gpumagic.memory.peak_ledger import LEDGER, Scope
from gpumagic.memory.report import allocator_notes, memory_report
from gpumagic.results.base import differences
from gpumagic.results.comparison import MemoryComparison
from gpumagic.results.lines import LineMemory, LineReport, SourceLines
from gpumagic.results.memory import DeviceMemoryDelta, MemoryDelta, MemoryReport, only_changed
from gpumagic.system import text

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Measurement(Measured[Scope, MemoryDelta]):
    """A context manager that measures the change of GPU memory by its body, also when it raises.

    It has the attributes of the `MemoryDelta` in ``result`` once the body has ended::

        with Measurement() as m:
            step()
        print(m.devices[0].peak)
    """

    unfinished = "the measurement has not ended; use its result after the with block"
    statement, attribute = "with gpumem()", "memory"

    def begin(self) -> Scope:
        return LEDGER.open()

    def end(self, scope: Scope, *, partial: bool) -> MemoryDelta:
        """End the scope; return what has happened in it, or why that is not known."""
        try:
            changed, why = LEDGER.close(scope), torch_cuda.uncounted()
        except Exception as error:
            why = f"the allocator's counters cannot be read: {text.reason(error)}"
            return MemoryDelta(partial=partial, error=torch_cuda.uncounted() or why)
        # Another device may have a context: its kind says nothing on this code.
        conditions = device_table.conditions(only_changed(changed))
        if why or not changed:
            why = why or failure.why_no_gpu()
            return MemoryDelta(partial=partial, error=why, conditions=conditions)
        return MemoryDelta(changed, partial=partial, notes=allocator_notes(), conditions=conditions)


# --- compared with a stored result --------------------------------------------------------------


def against(now: MemoryDelta, before: MemoryDelta) -> MemoryComparison:
    """Compare a cell's peaks with stored ones.

    Raises:
        SpecError: one of the results has no figures.
    """
    for name, each in (("this cell", now), ("the stored result", before)):
        if each.error is not None or each.partial:
            raise SpecError(
                f"nothing to compare: {name}: {each.error or 'it did not run to its end'}"
            )
    none = DeviceMemoryDelta(0, 0, 0)
    peaks = {
        i: (now.devices.get(i, none).peak, before.devices.get(i, none).peak)
        for i in sorted({*now.devices, *before.devices})
    }
    # A device without a peak has a context only; if all are so, there is that to show.
    shown = {i: both for i, both in peaks.items() if any(both)} or peaks
    others = "; ".join(differences(now.conditions, before.conditions))
    notes = (f"other conditions than those stored: {others}",) if others else ()
    return MemoryComparison(shown, notes)


def check(compared: MemoryComparison, fail_above: float) -> None:
    """Check that no device's peak is higher by more than ``fail_above`` (0.1: 10 % more).

    Raises:
        RegressionError: a peak is beyond what is allowed.
    """
    beyond = [
        f"cuda:{ordinal}: peak {peak:,} B, stored {stored:,} B"
        for ordinal, (peak, stored) in compared.peaks.items()
        if peak > stored * (1 + fail_above)
    ]
    if beyond:
        raise RegressionError(f"{'; '.join(beyond)}; allowed: {100 * fail_above:g} % more")


# --- the public function ---------------------------------------------------------------------


class EnterableReport(MemoryReport):
    """A report that begins a `Measurement` when it is used in a ``with`` statement.

    As a decorator it does what `gpumem` itself does.
    """

    @cached_property
    def _measurement(self) -> Measurement:
        return Measurement()

    def __enter__(self) -> Measurement:
        return self._measurement.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._measurement.__exit__(*error)

    def __call__(self, function: _Function) -> _Function:
        return cast(_Function, decorated(function, Measurement))


#: The previous report of `gpumem`; each shell has its own.
_previous: MemoryReport | None = None


@overload
def gpumem() -> EnterableReport: ...
@overload
def gpumem(code: str, globals: dict[str, Any] | None = None) -> MemoryDelta: ...
@overload
def gpumem(code: _Function) -> _Function: ...
def gpumem(code: object = None, globals: dict[str, Any] | None = None) -> Any:
    """Report on GPU memory, or measure its change by some code.

    - ``gpumem()`` returns a `MemoryReport`, with the change since the last one.
    - ``with gpumem() as m:`` measures the block; afterwards ``m`` has the attributes of a
      `MemoryDelta`. Where the report's price (some NVML calls) is too much, in a loop perhaps,
      ``with gpumagic.memory.measurement.Measurement() as m:`` does without it.
    - ``@gpumem`` or ``@gpumem()`` before a function (an ``async`` one too) prints what each call
      does; the last call's `MemoryDelta` is the function's attribute ``memory``. What torch.compile
      compiles into one graph is not measured within: decorate what ``torch.compile`` returns.
    - ``gpumem("statement", globals=globals())`` runs the statement, in a fresh namespace if none is
      given, and returns a `MemoryDelta`.

    All figures are bytes. Imports no torch and makes no context.

    Raises:
        SpecError: ``code`` is neither a statement nor a function, or is a generator function.

    Examples:
        >>> with gpumagic.gpumem() as m:
        ...     x = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        >>> m.devices[0].allocated, m.devices[0].peak
        (1048576, 1048576)

    .. versionadded:: 0.1.0
    """
    if code is None:
        global _previous
        report = memory_report(_previous)
        _previous = report
        return EnterableReport(**vars(report))
    if isinstance(code, str):
        with Measurement() as measurement:
            exec(compile(code, "<gpumem>", "exec"), {} if globals is None else globals)
        return measurement.result
    if callable(code) or isinstance(code, classmethod):
        return decorated(code, Measurement)
    raise SpecError(f"gpumem measures a statement (a string) or a function, not {code!r}")


# --- line by line ---------------------------------------------------------------------------------


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


class _MemoryCounter:
    """Counts the allocator's memory line by line, in a scope of the ledger.

    By the `switch` of a `LineTracer`; the figures of a line are its `_LineMemory`.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._lines: tuple[CodeLine, ...] = ()
        self._allocated: dict[int, int] = {}

    def switch(self, lines: tuple[CodeLine, ...]) -> None:
        changes = LEDGER.restart(self._scope)
        self._allocated = {ordinal: change.allocated_now for ordinal, change in changes.items()}
        for ordinal, change in only_changed(changes).items():
            for line in self._lines:
                line.figures.add(ordinal, change)
        for line in lines:
            line.figures.begin(line.hits, self._allocated)
        self._lines = lines


def source_lines(source: CodeSource) -> SourceLines:
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
        cell, self._lines = LEDGER.open(), LEDGER.open()
        self._counter = _MemoryCounter(self._lines)
        self._tracer = LineTracer(self._sources, self._counter.switch, _LineMemory)
        try:
            if self._lines.error is None:
                self._tracer.start()
        except BaseException:
            self.end(cell, partial=True)
            raise
        return cell

    def end(self, cell: Scope, *, partial: bool) -> LineReport:
        """Stop tracing; return what each line did, and the cell as a whole."""
        try:
            self._tracer.stop(failed=partial)
            with suppress(Exception):  # the cell's result says why nothing is known
                self._counter.switch(())
        finally:
            LEDGER.drop(self._lines)
            whole = Measurement().end(cell, partial=partial)
        sources = tuple(map(source_lines, self._sources))
        notes = () if self._tracer.note is None else (self._tracer.note,)
        return LineReport(whole, sources, notes)
