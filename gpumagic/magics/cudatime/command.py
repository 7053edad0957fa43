"""``%cudatime`` and ``%%cudatime``: GPU, wall and CPU time of code."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from gpumagic.cells.compile import CompiledCell, compile_cell, compile_loop
from gpumagic.cells.timeit_loop import Loop
from gpumagic.errors import SpecError
from gpumagic.magics.commands import run_verb
from gpumagic.magics.cudatime import comparing, execution
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.magics.cudatime.options import COMPARE, REPEATING, grammar
from gpumagic.magics.parsing import MagicLine
from gpumagic.timing.plan import Plan


@dataclass(frozen=True)
class Request:
    """What code a line and a cell ask for, and how to run it."""

    source: str
    #: Code to run before each repeat.
    setup: str = ""
    #: The magic's own line, by which tracebacks count a cell's lines.
    header: str | None = None
    #: How to repeat; None for a single run.
    plan: Plan | None = None


def read_request(line: MagicLine, cell: str | None) -> Request:
    """Return what a line and a cell ask for.

    Raises:
        SpecError: options, line and cell do not fit together.
    """
    options = line.options
    repeated = not REPEATING.isdisjoint(line.given)
    if cell is None and not line.code:
        raise SpecError("%cudatime: no statement to time. Try %cudatime?")
    if cell is not None and line.code and not repeated:
        raise SpecError(
            f"%%cudatime: {line.code!r} belongs below, in the cell; with --repeat it is setup; a "
            "value with blanks is in quotes"
        )
    return Request(
        line.code if cell is None else cell,
        setup="\n".join(each for each in (options.setup, line.code if cell else "") if each),
        header=None if cell is None else f"%%cudatime {line.text}",
        plan=_plan(options) if repeated else None,
    )


def run(magics: Any, line: str, cell: str | None, local_ns: dict[str, Any] | None) -> Any:
    """Run the magic; for code that awaits, return a coroutine that does.

    Raises:
        SpecError: the line does not fit.
    """
    __tracebackhide__ = True
    parsed = grammar().read(line, cell=cell is not None, quiet=magics.quiet)
    options = parsed.options
    if parsed.verb == COMPARE:
        return comparing.show(magics, options, silent=parsed.silent)
    if parsed.verb:
        return run_verb(magics, "cudatime", parsed)
    request = read_request(parsed, cell)
    if options.cluster:
        from gpumagic.magics import engines

        return engines.run(magics, "cudatime", parsed, cell, parsed.code)
    if cell is None and not parsed.is_code:
        grammar().check_statement(parsed.statement, magics.shell.user_ns, local_ns or {})
    try:
        code = _compile(magics.shell, request, local_ns)
    except SyntaxError as error:
        # IPython shows every frame of a SyntaxError that a magic raises: the fewer the better.
        raise error.with_traceback(None) from None
    except RecursionError:
        raise SpecError("the code is nested too deeply for Python's compiler") from None
    delivery = Delivery(magics, options)
    if isinstance(code, CompiledCell):
        return execution.run_once(delivery, code)
    assert request.plan is not None
    run_repeatedly = comparing.run_on_devices if options.on else execution.run_repeatedly
    return run_repeatedly(delivery, code, request.plan)


def _plan(options: argparse.Namespace) -> Plan:
    return Plan(options.loops, options.repeat, options.warmup, options.max_time, options.cold)


def _compile(shell: Any, request: Request, local_ns: dict[str, Any] | None) -> CompiledCell | Loop:
    __tracebackhide__ = True
    source, header = request.source, request.header
    if request.plan is None:
        return compile_cell(shell, source, header=header, local_ns=local_ns)
    return compile_loop(shell, source, header=header, local_ns=local_ns, setup=request.setup)
