"""``%gpumem`` and ``%%gpumem``: GPU memory now, and its change by a statement or a cell."""

from __future__ import annotations

import argparse
from collections import ChainMap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.cells.compile import CompiledCell, compile_cell
from gpumagic.cuda import context_failure
from gpumagic.errors import SpecError
from gpumagic.magics import baseline
from gpumagic.magics.gpu import cluster
from gpumagic.magics.gpumem import fit
from gpumagic.magics.output import hand_over
from gpumagic.magics.parsing import (
    MagicLine,
    Parser,
    add_functions_option,
    add_result_options,
    parse_line,
)
from gpumagic.magics.verbs import check_name, run_verb, take_verb
from gpumagic.memory.limit import LIMIT
from gpumagic.memory.measurement import Measurement
from gpumagic.memory.parking import PARKING
from gpumagic.memory.report import memory_report
from gpumagic.results import MemoryDelta
from gpumagic.system import text

if TYPE_CHECKING:
    from gpumagic.memory.line_profiler import LineMeasurement

_DESCRIPTION = """\
GPU memory: what is in use now, and its change by a statement or a cell.

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
  %gpumem vars            what holds the memory: your variables (modules by parameters, buffers and
                          gradients), the notebook (Out, _, the last exception), and the rest; adds
                          up to the byte. --gc looks through all objects for the rest
  %gpumem park            copy all GPU memory of this process to the host, and give it back to the
                          device; variables stay. It comes back before a cell that may use it.
                          --after 15min: after so long without a cell, by itself; off ends that
  %gpumem unpark          bring it back now; --wait waits until there is enough memory
  %gpumem free [NAMES]    delete these variables and the notebook's own references, collect garbage,
                          empty the cache; shows what each step freed. After it %debug has nothing
                          to show. --dry-run shows it and does nothing
  %gpumem limit SIZE      torch's allocator bounded as if each GPU had so much (16GiB, 500MiB), the
                          CUDA context and libraries included: beyond it torch runs out of memory.
                          Alone it says what the limit is; off lifts it
  %%gpumem --fit N=LO:HI  the largest value of the variable N with which the cell fits, found in at
                          most 12 runs
  %gpumem explain off     no explanation any more below a cell that ran out of memory; on: again

A line that begins with such a verb and goes on as a statement is one (%gpumem log = 3), and so is
what follows -- (%gpumem -- log).

The figures of a statement or a cell come from the counters of torch's allocator: nothing is
sampled, synchronised, collected or emptied, no context is made, and
torch.cuda.max_memory_allocated() returns afterwards what it would have returned without.
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

  %gpumem limit 16GiB
  %gpumem park
  %gpumem park --after 15min

  %%gpumem --fit batch=1:4096
  loss = model(torch.rand(batch, 512, device="cuda")).sum()
  loss.backward()
"""


def parser() -> Parser:
    """Return the parser of the options of ``%gpumem``."""
    made = Parser("%gpumem", description=_DESCRIPTION, epilog=_EXAMPLES, usage=_USAGE)
    made.add_argument(
        "--lines", action="store_true", help="by line: change, peak and what stayed until the end"
    )
    add_functions_option(made)
    made.add_argument(
        "--fit",
        metavar="NAME=LOW:HIGH",
        type=fit.value_range,
        help="the largest value of this variable with which the cell fits into memory: run it with "
        "a few, extrapolate, confirm; at most 12 runs (batch=1:4096)",
    )
    baseline.add_options(made, "a device's peak is that much higher")
    cluster.add_targets(made.add_argument_group("cluster (needs ipyparallel)"))
    add_result_options(made)
    return made


# argparse formats it by %.
_USAGE = (
    "%%gpumem [-o] [-v NAME] [-q] [VERB … | [--lines] [-f FUNC] STATEMENT]\n"
    "       %%%%gpumem [-o] [-v NAME] [-q] [--lines] [-f FUNC]"
)


def help_text() -> str:
    """Return what ``%gpumem?`` shows."""
    return parser().format_help()


def run(magics: Any, line: str, cell: str | None, local_ns: dict[str, Any] | None) -> Any:
    """Run the magic.

    Raises:
        SpecError: the line does not fit.
    """
    __tracebackhide__ = True
    parsed = parse_line(parser(), line, quiet=magics.quiet)
    options, statement, silent = parsed.options, parsed.statement, parsed.silent
    names = ChainMap(local_ns or {}, magics.shell.user_ns)
    verb = take_verb("gpumem", parsed, names) if cell is None else None
    if verb is not None:
        return run_verb(magics, "gpumem", *verb, silent=silent)
    if cell is None and not parsed.is_code and not options.cluster:
        check_name("gpumem", statement, magics.shell.user_ns, local_ns or {})
    _check(parsed, cell)
    if cell is None and not statement:
        return _report(magics, options, silent)
    source = statement + ";" * silent if cell is None else cell
    if options.cluster:
        from gpumagic.magics import engines

        return engines.run(magics, "gpumem", parsed, cell, source if cell is None else "")
    header = None if cell is None else f"%%gpumem {line}".rstrip()
    compiled = compile_cell(magics.shell, source, header=header, local_ns=local_ns)
    if options.fit is not None:
        return fit.run(magics, options, compiled)
    return _measure(magics, options, compiled)


def _check(line: MagicLine, cell: str | None) -> None:
    """Refuse options that do not fit together.

    Raises:
        SpecError: they do not.
    """
    options, statement = line.options, line.statement
    is_stored = not baseline.OPTIONS.isdisjoint(line.given)
    if cell is None and not statement:
        if options.cluster:
            raise SpecError("%gpumem --cluster needs a statement; %gpu cluster shows the devices")
        if is_stored or options.fit is not None:
            raise SpecError("--save, --against and --fit need a statement or a cell")
    if cell is not None and statement:
        raise SpecError(f"%%gpumem: {statement!r} belongs below, in the cell")
    if options.targets is not None and not options.cluster:
        raise SpecError("-t goes with --cluster; for example: %%gpumem --cluster -t 0:4")
    if is_stored and (options.lines or options.fit):
        raise SpecError("--save and --against are for a cell as a whole: leave --lines, --fit out")
    if options.fit is not None and (options.lines or options.functions):
        raise SpecError("--fit runs the cell several times: leave --lines out")
    if options.functions and not (options.lines or options.cluster):
        raise SpecError("-f names a function for --lines: %%gpumem --lines -f FUNC")


def _measure(magics: Any, options: argparse.Namespace, compiled: CompiledCell) -> Any:
    """Run the code once, measured as a whole or by line."""
    __tracebackhide__ = True
    measured: Measurement | LineMeasurement
    if options.lines:
        from gpumagic.cells.line_sources import selected_sources
        from gpumagic.memory.line_profiler import LineMeasurement

        measured = LineMeasurement(selected_sources(compiled, options.functions))
    else:
        measured = Measurement()
    stored = baseline.Baseline(magics.shell, options, baseline.MEMORY)

    def finish(value: Any) -> Any:
        __tracebackhide__ = True
        if isinstance(measured.result, MemoryDelta):
            stored.finish(magics.shell, measured.result)
        return measured.result if options.output else value

    return compiled.run_within(_Reporter(magics, options, measured), finish)


def _report(magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    extension = magics.extension
    report = extension.memory_report = memory_report(extension.memory_report)
    LIMIT.update()
    context_failure.check()
    notes = (context_failure.note(), *LIMIT.notes(), PARKING.note())
    more = [note for note in notes if note is not None]
    if more:
        report = replace(report, notes=(*report.notes, *more))
    return hand_over(magics.shell, report, options, silent=silent)


class _Reporter:
    """A context manager that measures its body and hands the result over, also when it raises."""

    def __init__(
        self, magics: Any, options: argparse.Namespace, measured: Measurement | LineMeasurement
    ) -> None:
        self._magics = magics
        self._options = options
        self._measured = measured

    def __enter__(self) -> None:
        self._measured.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._measured.__exit__(kind, *error)
        result = self._measured.result
        if kind is not None and isinstance(result, MemoryDelta) and not result.says_something:
            return
        try:
            hand_over(self._magics.shell, self._measured.result, self._options)
        except Exception as failure:  # the cell's own exception must pass, not ours
            print(f"%gpumem: cannot show the result ({text.named(failure)})")
