"""``%gpumem`` and ``%%gpumem``: GPU memory now, and its change by a statement or a cell.

Where the line has a verb, or ``--fit``, another module goes on, which is imported then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gpumagic.cells.compile import CompiledCell, compile_cell
from gpumagic.cells.line_sources import selected_sources
from gpumagic.cuda import dead_context
from gpumagic.errors import SpecError
from gpumagic.magics.delivery import hand_over
from gpumagic.magics.gpumem.gpumem_options import RunOptions
from gpumagic.magics.magic_state import MagicState
from gpumagic.magics.option_forms import RESULT
from gpumagic.magics.outcome import Outcome
from gpumagic.magics.parsing import MagicLine
from gpumagic.memory import against_stored
from gpumagic.memory.limit import LIMIT
from gpumagic.memory.line_memory import LineMeasurement
from gpumagic.memory.measurement import Measurement
from gpumagic.memory.report import memory_report
from gpumagic.results.memory.memory_delta import MemoryDelta


def run(
    magics: MagicState, line: MagicLine, cell: str | None, local_ns: dict[str, Any] | None
) -> Any:
    """Run the magic.

    Raises:
        SpecError: the line does not fit.
    """
    options = line.options
    if not isinstance(options, RunOptions):
        from gpumagic.magics.gpumem import gpumem_verbs

        return gpumem_verbs.run(line.verb, magics, options, local_ns)
    if cell is None and not line.code:
        for name in line.given:
            if name not in RESULT:
                raise SpecError(f"{name} needs a statement or a cell: %gpumem {name} … y = f(x)")
        return _report(magics, options)
    if options.cluster:
        from gpumagic.magics import cluster

        return cluster.run_cell(magics, "gpumem", line, cell)
    source = line.code if cell is None else cell
    header = None if cell is None else f"%%gpumem {line.written}".rstrip()
    compiled = compile_cell(magics.shell, source, header=header, local_ns=local_ns)
    if options.fit is not None:
        from gpumagic.magics.gpumem import fit

        return fit.run(magics, options, compiled, *options.fit)
    return _measure(magics, options, compiled)


def _measure(magics: MagicState, options: RunOptions, compiled: CompiledCell) -> Any:
    """Run the code once, measured as a whole or by line."""
    measured: Measurement | LineMeasurement = Measurement()
    if options.lines:
        measured = LineMeasurement(selected_sources(compiled, options.functions))
    outcome = Outcome(magics, options, MemoryDelta, against_stored.against, against_stored.check)

    @contextmanager
    def reported() -> Iterator[None]:
        failed = True
        try:
            with measured:
                yield
            failed = False
        finally:
            # None: an interrupt came as the measurement began or ended.
            found = outcome.result = measured.finished
            empty = isinstance(found, MemoryDelta) and not found.says_something
            outcome.deliver(silent=failed and empty)

    return compiled.run_within(reported(), outcome.finish)


def _report(magics: MagicState, options: RunOptions) -> Any:
    """Show what holds GPU memory now."""
    report = magics.memory_report = memory_report(magics.memory_report)
    LIMIT.apply()
    dead_context.check()
    notes = [*report.notes, dead_context.note()]
    if limits := LIMIT.limits().limits:
        notes.append(f"Limited to {limits}; %gpumem limit says by what.")
    report = replace(report, notes=tuple(filter(None, notes)))
    return hand_over(magics.shell, report, options)
