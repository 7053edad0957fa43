"""``%gpumem`` and ``%%gpumem``: GPU memory now, and its change by a statement or a cell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gpumagic.cells.compile import CompiledCell, compile_cell
from gpumagic.cells.line_sources import selected_sources
from gpumagic.cuda import failure
from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import expanded
from gpumagic.magics.delivery import Delivery
from gpumagic.magics.gpumem import fit
from gpumagic.magics.gpumem.gpumem_options import grammar
from gpumagic.magics.output import hand_over
from gpumagic.magics.parsing import RESULT
from gpumagic.magics.shell_state import Magics
from gpumagic.memory.limit import LIMIT
from gpumagic.memory.measurement import LineMeasurement, Measurement
from gpumagic.memory.report import memory_report
from gpumagic.results.memory import MemoryDelta


def run(magics: Magics, line: str, cell: str | None, local_ns: dict[str, Any] | None) -> Any:
    """Run the magic.

    Raises:
        SpecError: the line does not fit.
    """
    if cell is None and line.split()[:1] == ["limit"]:
        line = expanded(magics.shell, line)
    parsed = grammar().read(line, cell=cell is not None, quiet=magics.quiet)
    options, code = parsed.options, parsed.code
    if parsed.verb:
        from gpumagic.magics.gpumem import gpumem_verbs

        return gpumem_verbs.run(parsed.verb, magics, options)
    if cell is None and not code:
        of_code = [name for name in parsed.given if name not in RESULT]
        if of_code:
            name = of_code[0]
            raise SpecError(f"{name} needs a statement or a cell: %gpumem {name} … y = f(x)")
        return _report(magics, options)
    if cell is not None and code:
        raise SpecError(
            f"%%gpumem: {code!r} belongs below, in the cell; a value with blanks is in quotes"
        )
    if cell is None and not options.cluster:
        grammar().check_statement(code, local_ns or {}, magics.shell.user_ns)
    if options.cluster:
        from gpumagic.magics.gpu import cluster

        return cluster.run_cell(magics, "gpumem", parsed, cell)
    source = code if cell is None else cell
    header = None if cell is None else f"%%gpumem {line}".rstrip()
    compiled = compile_cell(magics.shell, source, header=header, local_ns=local_ns)
    if options.fit is not None:
        return fit.run(magics, options, compiled)
    return _measure(magics, options, compiled)


def _measure(magics: Magics, options: argparse.Namespace, compiled: CompiledCell) -> Any:
    """Run the code once, measured as a whole or by line."""
    measured: Measurement | LineMeasurement = Measurement()
    if options.lines:
        measured = LineMeasurement(selected_sources(compiled, options.functions))
    delivery = Delivery(magics, options, MemoryDelta)

    @contextmanager
    def reported() -> Iterator[None]:
        failed = True
        try:
            with measured:
                yield
            failed = False
        finally:
            result = measured.finished  # None: an interrupt came as the measurement began or ended
            silent = failed and isinstance(result, MemoryDelta) and not result.says_something
            if not silent:
                delivery.keep(result)
                delivery.deliver()

    return compiled.run_within(reported(), delivery.finish)


def _report(magics: Magics, options: argparse.Namespace) -> Any:
    state = magics.state
    report = state.memory_report = memory_report(state.memory_report)
    LIMIT.apply()
    failure.check_context()
    limit = LIMIT.limits().limits
    limit = limit and f"Limited to {limit}; %gpumem limit says by what."
    notes = (*report.notes, failure.dead_context_note(), limit)
    report = replace(report, notes=tuple(filter(None, notes)))
    return hand_over(magics.shell, report, options)
