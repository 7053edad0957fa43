"""``%cudatime`` and ``%%cudatime``: GPU, wall and CPU time of code."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, Literal

from gpumagic.cells.compile import CompiledCell, compile_cell, compile_loop
from gpumagic.cells.timeit_loop import Loop
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime import execution, lines, named_results, repeat_options
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.magics.cudatime.options import OF_A_RUN, parser
from gpumagic.magics.parsing import MagicLine, parse_line
from gpumagic.magics.verbs import check_name, run_verb, take_verb
from gpumagic.timing.plan import Plan


def help_text() -> str:
    """Return the text that ``%cudatime?`` shows."""
    return parser().format_help()


@dataclass(frozen=True)
class Request:
    """What a line and a cell ask for."""

    task: Literal["verb", "compare", "engines", "time"]
    #: The code to time; the words that follow a verb or ``--compare``.
    source: str = ""
    #: Code to run before each repeat.
    setup: str = ""
    #: The magic's own line, by which tracebacks count a cell's lines.
    header: str | None = None
    verb: str = ""
    #: A trailing ``;``.
    silent: bool = False
    #: A word that may be a verb with a typing mistake.
    word: str = ""
    #: How to repeat; None for a single run.
    plan: Plan | None = None


def read_request(line: MagicLine, cell: str | None) -> Request:
    """Return what a line and a cell ask for.

    Raises:
        SpecError: options, line and cell do not fit together.
    """
    options = line.options
    code = line.rest if line.statement else ""
    repeating = repeat_options.REPEATING.intersection(line.given)
    repeated = bool(repeating)
    if cell is None and not repeated and OF_A_RUN.isdisjoint(line.given):
        verb = take_verb("cudatime", line)
        if verb is not None:
            return Request("verb", verb=verb[0], source=verb[1], silent=line.silent)
    if options.compare:
        if cell is not None:
            raise SpecError("%%cudatime: --compare shows named results; write %cudatime --compare")
        named_results.check(line.given)
        return Request("compare", line.statement, silent=line.silent)
    if cell is None and not code:
        raise SpecError("%cudatime: no statement to time. Try %cudatime?")
    if cell is not None and code and not repeated:
        raise SpecError(
            f"%%cudatime: {code!r} belongs below, in the cell; with --repeat it is setup"
            f"{line.quotes_hint}"
        )
    lines.check(options, repeating)
    if options.cluster:
        return Request("engines", code)
    if options.targets is not None:
        raise SpecError("-t goes with --cluster; for example: %%cudatime --cluster -t 0:4")
    return Request(
        "time",
        source=code if cell is None else cell,
        setup=repeat_options.setup_code(options, "" if cell is None else code),
        header=None if cell is None else f"%%cudatime {line.text}",
        word=line.statement if cell is None and not line.is_code else "",
        plan=repeat_options.plan(options) if repeated else None,
    )


def run(magics: Any, line: str, cell: str | None, local_ns: dict[str, Any] | None) -> Any:
    """Run the magic; for code that awaits, return a coroutine that does.

    Raises:
        SpecError: the line does not fit.
    """
    __tracebackhide__ = True
    parsed = parse_line(parser(), line, quiet=magics.quiet)
    options, request = parsed.options, read_request(parsed, cell)
    source, silent = request.source, request.silent
    if request.task == "verb":
        return run_verb(magics, "cudatime", request.verb, source, silent=silent)
    if request.task == "compare":
        return named_results.show(magics, source, options, silent=silent)
    if request.task == "engines":
        from gpumagic.magics import engines

        return engines.run(magics, "cudatime", parsed, cell, source)
    check_name("cudatime", request.word, magics.shell.user_ns, local_ns or {}, given=parsed.given)
    _wait_for_other_ranks(options)
    try:
        code = _compile(magics.shell, request, local_ns)
    except SyntaxError as error:
        # IPython shows every frame of a SyntaxError that a magic raises: the fewer the better.
        raise error.with_traceback(None) from None
    except RecursionError:
        raise SpecError("the code is nested too deeply for Python's compiler") from None
    return execution.run(Delivery(magics, options), code, request.plan)


def _wait_for_other_ranks(options: argparse.Namespace) -> None:
    if not options.barrier:
        return
    from gpumagic.cluster import distributed

    if not distributed.barrier():
        raise SpecError("--barrier: this process is in no group of torch.distributed")


def _compile(shell: Any, request: Request, local_ns: dict[str, Any] | None) -> CompiledCell | Loop:
    __tracebackhide__ = True
    source, header = request.source, request.header
    if request.plan is None:
        return compile_cell(shell, source, header=header, local_ns=local_ns)
    return compile_loop(shell, source, header=header, local_ns=local_ns, setup=request.setup)
