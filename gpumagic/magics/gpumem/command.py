"""``%gpumem`` and ``%%gpumem``: GPU memory now, and what a statement or a cell did to it."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpumagic.cells.compile import compile_cell
from gpumagic.errors import SpecError
from gpumagic.magics.gpu import cluster
from gpumagic.magics.gpumem import fit
from gpumagic.magics.output import hand_over
from gpumagic.magics.parsing import Parser, add_result_options, take_options, take_semicolon
from gpumagic.magics.verbs import VERBS, check_name, run_verb, take_verb
from gpumagic.memory.measurement import Measurement
from gpumagic.memory.report import memory_report
from gpumagic.results import LineReport, MemoryDelta
from gpumagic.system import text

if TYPE_CHECKING:
    from gpumagic.memory.line_profiler import LineTracer

_DESCRIPTION = """\
GPU memory: what there is now, and what a statement or a cell does to it.

  %gpumem                 a report: what torch holds and held at most, what this process holds
                          outside torch's allocator (CUDA context, libraries), what other
                          processes hold, what is free; and the change since the last report
  %gpumem STATEMENT       run the statement; the exact change of allocated and reserved memory, and
                          the exact peak of allocated memory above the start
  %%gpumem                the same for a cell, also when it raises
  %%gpumem --lines        by line: change, peak above the line's start, and what stayed: of the
                          bytes that the line allocated those alive when the cell ended. What the
                          functions that it calls do counts to the line (also what is freed when
                          they return); with -f FUNC their own lines are shown too
  %gpumem on | off        after every cell that changed GPU memory one line: change, peak, now
  %gpumem log             the cells until now: change, peak and time of each
  %gpumem plot [FILE]     the same as a picture, with the devices' limits (needs matplotlib)
  %gpumem record on | off the allocator's history with Python stacks, the newest --entries N events
  %gpumem cells           live memory by the cell that allocated it (needs the history)
  %gpumem snapshot FILE   segments, blocks and the history, if any, for torch's memory_viz
  %gpumem vars            who holds the memory: every name of yours (modules by parameters, buffers
                          and gradients), what the notebook pins (Out, _, the last exception), and
                          the rest; adds up to the byte. --gc looks through all objects for the rest
  %gpumem free [NAMES]    delete the variables named; let go of what the notebook pins, collect
                          garbage, empty the cache; what each step gave back. After it %debug has
                          nothing to show. --dry-run says it first and does nothing
  %gpumem explain off     no explanation any more below a cell that ran out of memory; on: again

A line that begins with such a verb and goes on as a statement is one (%gpumem log = 3), and so is
what follows -- (%gpumem -- log).

The figures of a statement or a cell come from the counters of torch's allocator: nothing is
sampled, synchronised, collected or emptied, no context is made, and
torch.cuda.max_memory_allocated() says afterwards what it would have said without.
"""

_EXAMPLES = """\
examples:
  %gpumem
  report = %gpumem -o -q
  %gpumem y = model(x)
  %gpumem -v forward y = model(x)
  %gpumem vars
  %gpumem free --dry-run
  %gpumem free optimizer batch

  %%gpumem
  loss = model(x).sum()
  loss.backward()

  %%gpumem --lines -f model.forward
  loss = model(x).sum()
  loss.backward()
"""


def parser() -> Parser:
    """The options of ``%gpumem``."""
    made = Parser("%gpumem", description=_DESCRIPTION, epilog=_EXAMPLES, usage=_USAGE)
    made.add_argument(
        "--lines", action="store_true", help="by line: change, peak and what stayed until the end"
    )
    made.add_argument(
        "-f",
        dest="functions",
        metavar="FUNC",
        action="append",
        default=[],
        help="with --lines, the lines of this function too; may be repeated",
    )
    made.add_argument(
        "--fit",
        metavar="NAME=LOW:HIGH",
        type=fit.value_range,
        help="the largest value of this variable with which the cell fits into memory: run it with "
        "a few, extrapolate, confirm; at most 12 runs (batch=1:4096)",
    )
    cluster.add_targets(made.add_argument_group("cluster (needs ipyparallel)"))
    add_result_options(made)
    return made


# argparse formats it by %.
_USAGE = (
    "%%gpumem [-o] [-v NAME] [-q] [VERB … | [--lines] [-f FUNC] STATEMENT]\n"
    "       %%%%gpumem [-o] [-v NAME] [-q] [--lines] [-f FUNC]"
)


def help_text() -> str:
    """What ``%gpumem?`` shows."""
    return parser().format_help()


def run(magics: Any, line: str, cell: str | None, local_ns: dict[str, Any] | None) -> Any:
    """Run the magic.

    Raises:
        SpecError: the line does not fit.
    """
    __tracebackhide__ = True
    options, statement = take_options(parser(), line)
    if magics.quiet:
        options.quiet = True
    written = line.strip().removesuffix(statement)
    statement, silent = take_semicolon(statement)
    verb = take_verb(written, statement) if cell is None else None
    if verb is not None:
        return run_verb(magics, verb[0], f"{written} {verb[1]}", silent=silent)
    if cell is None and "--" not in written.split() and not options.cluster:
        check_name("%gpumem", statement, VERBS, magics.shell.user_ns, local_ns or {})
    if cell is None and not statement:
        if options.cluster:
            raise SpecError("%gpumem --cluster needs a statement; %gpu cluster shows the devices")
        return _report(magics, options, silent)
    if cell is not None and statement:
        raise SpecError(f"%%gpumem: {statement!r} belongs below, in the cell")
    source = statement + ";" * silent if cell is None else cell
    if options.cluster:
        everywhere = import_module("gpumagic.magics.engines")
        return everywhere.memory(magics, parser(), options, cell, source if cell is None else "")
    if options.targets is not None:
        raise SpecError("-t goes with --cluster; for example: %%gpumem --cluster -t 0:4")
    header = None if cell is None else f"%%gpumem {line}".rstrip()
    compiled = compile_cell(magics.shell, source, header=header, local_ns=local_ns)

    def finish(value: Any) -> Any:
        return scope.shown if options.output else value

    tracer = None
    if options.fit is not None:
        if options.lines or options.functions:
            raise SpecError("--fit runs the cell several times: leave --lines out")
        return fit.run(magics, options, compiled)
    if options.lines:
        lines = import_module("gpumagic.magics.gpumem.lines")
        tracer = lines.tracer(compiled, options.functions)
    elif options.functions:
        raise SpecError("-f names a function for --lines: %%gpumem --lines -f FUNC")
    scope = _Reported(magics, options, tracer)
    return compiled.run_within(scope, finish)


def _report(magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    report = memory_report(magics.previous_report)
    magics.previous_report = report
    return hand_over(magics.shell, report, options, silent=silent)


class _Reported(Measurement):
    """A measurement that hands its result over when it ends, also by an exception."""

    def __init__(
        self, magics: Any, options: argparse.Namespace, tracer: LineTracer | None = None
    ) -> None:
        super().__init__()
        self._magics = magics
        self._options = options
        self._tracer = tracer
        self._tracing = False
        self._by_line: LineReport | None = None

    @property
    def shown(self) -> MemoryDelta | LineReport:
        """The result that is handed over."""
        return self._by_line or self.result

    def __enter__(self) -> _Reported:
        super().__enter__()
        if self._tracer is not None:
            try:
                self._tracer.start()
                self._tracing = True
            except RuntimeError:
                pass  # a pluggable allocator without counters; the result says so
            except BaseException:
                super().__exit__(*sys.exc_info())
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        try:
            if self._tracer is not None and self._tracing:
                self._tracer.stop()
        finally:
            super().__exit__(kind, *error)
        try:
            if self._tracer is not None:
                self._by_line = self._tracer.result(self.result)
            hand_over(self._magics.shell, self.shown, self._options)
        except Exception as failure:  # the cell's own exception must pass, not ours
            print(f"%gpumem: cannot show the result ({text.named(failure)})")
