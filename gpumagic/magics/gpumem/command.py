"""``%gpumem`` and ``%%gpumem``: GPU memory now, and its change by a statement or a cell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.cells.compile import CompiledCell, compile_cell
from gpumagic.cuda import failure
from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import expanded
from gpumagic.magics.baseline import Baseline
from gpumagic.magics.gpumem import fit
from gpumagic.magics.gpumem.options import PER_CELL, grammar
from gpumagic.magics.output import hand_over, say, value_of
from gpumagic.memory.limit import LIMIT
from gpumagic.memory.measurement import Measurement
from gpumagic.memory.report import memory_report
from gpumagic.render.units import bytes_
from gpumagic.results.memory import MemoryDelta
from gpumagic.system import text

if TYPE_CHECKING:
    from gpumagic.memory.measurement import LineMeasurement


#: The options that are for a statement or a cell.
_OF_CODE = ("--lines", "--fit", "--save", "--against", "--cluster")


def run(magics: Any, line: str, cell: str | None, local_ns: dict[str, Any] | None) -> Any:
    """Run the magic.

    Raises:
        SpecError: the line does not fit.
    """
    if cell is None and line.split()[:1] == ["limit"]:
        line = expanded(magics.shell, line)
    parsed = grammar().read(line, cell=cell is not None, quiet=magics.quiet)
    options, code = parsed.options, parsed.code
    if parsed.verb:
        from gpumagic.magics.gpumem import per_cell, verbs

        command = per_cell if parsed.verb in PER_CELL else verbs
        return command.run(parsed.verb, magics, options)
    if cell is None and not code:
        for name in _OF_CODE:
            if name in parsed.given:
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


def _measure(magics: Any, options: argparse.Namespace, compiled: CompiledCell) -> Any:
    """Run the code once, measured as a whole or by line."""
    measured: Measurement | LineMeasurement
    if options.lines:
        from gpumagic.cells.line_sources import selected_sources
        from gpumagic.memory.measurement import LineMeasurement

        measured = LineMeasurement(selected_sources(compiled, options.functions))
    else:
        measured = Measurement()
    stored = Baseline(magics.shell, options, MemoryDelta)

    def finish(value: Any) -> Any:
        if isinstance(measured.result, MemoryDelta):
            stored.finish(measured.result)
        return value_of(value, measured.result, options)

    return compiled.run_within(_reported(magics.shell, options, measured), finish)


@contextmanager
def _reported(
    shell: Any, options: argparse.Namespace, measured: Measurement | LineMeasurement
) -> Iterator[None]:
    """Measure the block and hand the result over, also when it raises."""
    failed = True
    try:
        with measured:
            yield
        failed = False
    finally:
        result = measured.finished  # None: an interrupt came while the measurement began or ended
        silent = failed and isinstance(result, MemoryDelta) and not result.says_something
        if result is not None and not silent:
            try:
                hand_over(shell, result, options)
            except Exception as failure:  # the cell's own exception must pass, not ours
                say(shell, f"%gpumem: cannot show the result ({text.named(failure)})")


def _report(magics: Any, options: argparse.Namespace) -> Any:
    extension = magics.extension
    report = extension.memory_report = memory_report(extension.memory_report)
    LIMIT.apply()
    failure.check_context()
    notes = (failure.dead_context_note(), _limit_note())
    more = [note for note in notes if note is not None]
    if more:
        report = replace(report, notes=(*report.notes, *more))
    return hand_over(magics.shell, report, options)


def _limit_note() -> str | None:
    """Return what the limit is; None without one."""
    if LIMIT.size is None:
        return None
    return f"Limited to {bytes_(LIMIT.size)} of each GPU; %gpumem limit off lifts it."
