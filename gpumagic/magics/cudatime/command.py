"""``%cudatime`` and ``%%cudatime``: GPU, wall and CPU time of code."""

from __future__ import annotations

from typing import Any

from gpumagic.cells.compile import CompiledCell, compile_cell
from gpumagic.cells.timeit_loop import Loop, compile_loop
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime import comparing, execution, per_cell
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.magics.cudatime.options import COMPARE, REPEATING, grammar
from gpumagic.magics.parsing import MagicLine
from gpumagic.timing.plan import Plan


def run(magics: Any, line: str, cell: str | None, local_ns: dict[str, Any] | None) -> Any:
    """Run the magic; for code that awaits, return a coroutine that does.

    Raises:
        SpecError: the line does not fit.
    """
    parsed = grammar().read(line, cell=cell is not None, quiet=magics.quiet)
    options = parsed.options
    if parsed.verb == COMPARE:
        return comparing.show(magics, options)
    if parsed.verb:
        return per_cell.run(parsed.verb, magics, options)
    repeated = not REPEATING.isdisjoint(parsed.given)
    if cell is not None and parsed.code.isdecimal():
        raise SpecError(f"{parsed.code} is no setup; -r {parsed.code} sets the number of repeats")
    if cell is None and not parsed.code:
        raise SpecError("%cudatime: no statement to time. Try %cudatime?")
    if cell is not None and parsed.code and not repeated:
        functions = f"; for a function's lines: -f {parsed.code}" if options.lines else ""
        raise SpecError(
            f"%%cudatime: {parsed.code!r} belongs below, in the cell{functions}; with --repeat it "
            "is setup; a value with blanks is in quotes"
        )
    if cell is None and not options.cluster:
        grammar().check_statement(parsed.code, local_ns or {}, magics.shell.user_ns)
    if options.cluster:
        from gpumagic.magics.gpu import cluster

        return cluster.run_cell(magics, "cudatime", parsed, cell)
    setup = "\n".join(each for each in (options.setup, parsed.code if cell else "") if each)
    plan = Plan(options.loops, options.repeats, options.warmup, options.max_time, options.cold)
    delivery = Delivery(magics, options)
    code = _compile(magics.shell, parsed, cell, local_ns, setup if repeated else None)
    if isinstance(code, Loop) and options.on:
        return comparing.run_on_devices(delivery, code, plan)
    return execution.run(delivery, code, plan)


def _compile(
    shell: Any,
    line: MagicLine,
    cell: str | None,
    local_ns: dict[str, Any] | None,
    setup: str | None,
) -> CompiledCell | Loop:
    """Compile the code for one run; with a ``setup``, also an empty one, for repeated runs."""
    source = line.code if cell is None else cell
    # The magic's own line, by which tracebacks count a cell's lines.
    header = None if cell is None else f"%%cudatime {line.text}"
    try:
        if setup is None:
            return compile_cell(shell, source, header=header, local_ns=local_ns)
        return compile_loop(shell, source, header=header, local_ns=local_ns, setup=setup)
    except SyntaxError as error:
        # IPython shows every frame of a SyntaxError that a magic raises: the fewer the better.
        raise error.with_traceback(None) from None
    except RecursionError:
        raise SpecError("the code is nested too deeply for Python's compiler") from None
