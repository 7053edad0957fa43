"""``%cudatime`` and ``%%cudatime``: GPU, wall and CPU time of code."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, Literal

from gpumagic.cells.compile import CompiledCell, compile_cell, compile_loop
from gpumagic.cells.timeit_loop import Loop
from gpumagic.errors import SpecError
from gpumagic.magics import baseline
from gpumagic.magics.cudatime import (
    execution,
    flops_and_energy,
    lines,
    named_results,
    profiling,
    repeat_options,
)
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.magics.gpu import cluster
from gpumagic.magics.parsing import MagicLine, Parser, add_result_options, parse_line
from gpumagic.magics.verbs import check_name, run_verb, take_verb
from gpumagic.timing.benchmark import MIN_REPEAT_TIME
from gpumagic.timing.plan import DEFAULT_REPEAT, Plan

_DESCRIPTION = f"""\
Time code on the GPU, on the wall and on the CPU.

  %cudatime STATEMENT     run the statement once, like %time
  %%cudatime              run the cell once, like %%time
  %%cudatime --lines      once, line by line: GPU and host time, waits for the GPU and for input
  %%cudatime -n 10 -r 5   run it many times, like %%timeit: 5 repeats of 10 loops
  %cudatime --compare     the results named by --name, side by side
  %cudatime on            from now on a line with the times of every cell that used the GPU, or
                          took longer than 0.5 s (--above TIME); off ends that; log sums them up

GPU time is measured by CUDA events on every device in use, and includes side streams and other
threads: from the start of the code until the device has finished its last work. A time with ≤ is
an upper bound: the GPU finished no later than the code, so it may have been idle in between.
Wall time ends when everything, GPU work included, has finished; host time when the code returns.
The GPU times of --lines add up to the cell's: work beside an earlier line's counts to that one. A
statement over several lines counts to its first line, with what it awaits. Waits inside torch's C++
code are counted by torch's own warnings, without a time; those of other libraries are not known.

A single run assigns the code's variables and returns its value. With an option of "repeated runs"
the code becomes the body of a function, assigns nothing in the namespace, the garbage collector is
off, and code on the %%cudatime line is setup. The repeats end when the median is precise enough, or
the time is over; -n alone is {DEFAULT_REPEAT} repeats, -r alone as many loops as last
{MIN_REPEAT_TIME:g} s. Unless -w is given with -n or -r, a few more loops are run behind a delay
kernel, to find what limits the code: the GPU, or the host that launches the work.
"""

_EXAMPLES = """\
examples:
  %cudatime y = model(x)
  %cudatime -r 20 model(x)
  timing = %cudatime -o -q -n 100 model(x)
  %cudatime -- -x @ y

  %%cudatime -v step
  loss = model(x).sum()
  loss.backward()

  %%cudatime --lines -f train_step
  for batch in loader:
      train_step(batch)

  %%cudatime --repeat x = torch.rand(4096, 4096, device="cuda")
  x @ x

  %%cudatime --on cpu,cuda:0 x = torch.rand(2048, 2048)
  x @ x
"""

#: Options that no verb has.
_OF_A_RUN = {
    *("--name", "--trace", "--nvtx", "--kernels", "--compare", "--flops", "--lines", "-f"),
    *baseline.OPTIONS,
}

# argparse formats a usage with %.
_USAGE = "%%cudatime [options] STATEMENT\n       %%%%cudatime [options] [SETUP]"


def parser() -> Parser:
    """Return the parser of the options of ``%cudatime``."""
    made = Parser("%cudatime", description=_DESCRIPTION, epilog=_EXAMPLES, usage=_USAGE)
    repeat_options.add_options(made)
    lines.add_options(made)
    made.add_argument(
        "--rows",
        action="store_true",
        help="show a single run with a row for each of its times, instead of in one line",
    )
    profiling.add_options(made)
    flops_and_energy.add_options(made)
    named_results.add_options(made)
    baseline.add_options(made, "it takes that much longer, beyond the noise")
    group = made.add_argument_group("many processes")
    cluster.add_targets(group)
    group.add_argument(
        "--barrier",
        action="store_true",
        help="wait for the other ranks of torch.distributed's group before the clocks start",
    )
    add_result_options(made)
    return made


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
    repeated = not repeat_options.REPEATING.isdisjoint(line.given)
    if cell is None and not repeated and _OF_A_RUN.isdisjoint(line.given):
        verb = take_verb("cudatime", line)
        if verb is not None:
            return Request("verb", verb=verb[0], source=verb[1], silent=line.silent)
    if options.compare:
        if cell is not None:
            raise SpecError("%%cudatime: --compare shows named results; write %cudatime --compare")
        return Request("compare", line.statement, silent=line.silent)
    if cell is None and not code:
        raise SpecError("%cudatime: no statement to time. Try %cudatime?")
    if cell is not None and code and not repeated:
        raise SpecError(
            f"%%cudatime: {code!r} belongs below, in the cell; with --repeat it is setup"
        )
    lines.check(options, repeated=repeated)
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
    check_name("cudatime", request.word, magics.shell.user_ns, local_ns or {})
    _wait_for_other_ranks(options)
    try:
        code = _compile(magics.shell, request, local_ns)
    except SyntaxError as error:
        # IPython shows every frame of a SyntaxError that a magic raises: the fewer the better.
        raise error.with_traceback(None) from None
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
