"""``%cudatime`` and ``%%cudatime``: GPU, wall and CPU time of code."""

from __future__ import annotations

from typing import Any

from gpumagic.cells.compile import compile_cell
from gpumagic.cells.timeit_loop import compile_loop
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime import comparing, cudatime_verbs, execution
from gpumagic.magics.cudatime.cudatime_options import AGAIN, COMPARE, REPEATING, grammar
from gpumagic.magics.shell_state import Magics
from gpumagic.timing.repeat_plan import Plan


def run(magics: Magics, line: str, cell: str | None, local_ns: dict[str, Any] | None) -> Any:
    """Run the magic; for code that awaits, return a coroutine that does.

    Raises:
        SpecError: the line does not fit.
    """
    parsed = grammar().read(line, cell=cell is not None, quiet=magics.quiet)
    options = parsed.options
    if parsed.verb == COMPARE:
        return comparing.show(magics, options)
    if parsed.verb:
        return cudatime_verbs.run(parsed.verb, magics, options)
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
    source = parsed.code if cell is None else cell
    # The magic's own line, by which tracebacks count a cell's lines.
    header = None if cell is None else f"%%cudatime {line}"
    if not repeated:
        single = compile_cell(magics.shell, source, header=header, local_ns=local_ns)
        single.check_runs_again(*AGAIN & parsed.given.keys())
        return execution.run_once(magics, options, single)
    setup = "\n".join(each for each in (options.setup, parsed.code if cell else "") if each)
    loop = compile_loop(magics.shell, source, header=header, local_ns=local_ns, setup=setup)
    plan = Plan(options.loops, options.repeats, options.warmup, options.max_time, options.cold)
    run_repeatedly = comparing.run_on_devices if options.on else execution.run_repeatedly
    return run_repeatedly(magics, options, loop, plan)
