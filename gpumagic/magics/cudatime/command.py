"""``%cudatime`` and ``%%cudatime``: how long code takes on the GPU, on the wall and on the CPU."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from gpumagic.cells.cancellation import awaited
from gpumagic.cells.compile import CompiledCell, compile_cell, compile_loop
from gpumagic.cells.timeit_loop import Loop
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime import named_results, per_cell, profiling, repeat_options
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.magics.gpu import cluster
from gpumagic.magics.parsing import Parser, add_result_options, take_options, take_semicolon
from gpumagic.magics.progress import Progress
from gpumagic.magics.verbs import check_name, run_verb, take_verb
from gpumagic.system import text
from gpumagic.timing.benchmark import MIN_REPEAT_TIME, run_async
from gpumagic.timing.benchmark import run as run_loop
from gpumagic.timing.plan import DEFAULT_REPEAT
from gpumagic.timing.run import Stopwatch, summarize

_DESCRIPTION = f"""\
Time code on the GPU, on the wall and on the CPU.

  %cudatime STATEMENT     run the statement once, like %time
  %%cudatime              run the cell once, like %%time
  %%cudatime -n 10 -r 5   run it many times, like %%timeit: 5 repeats of 10 loops
  %cudatime --compare     the results that --name has kept, side by side
  %cudatime on            from now on a line with the times of every cell that used the GPU, or
                          took longer than 0.5 s (--above TIME); off ends that; log sums all up

GPU time is taken by CUDA events on every device that is in use, and includes side streams and
other threads: from the start of the code until the device's last work is done. A figure with ≤ is
an upper bound: the GPU was done as soon as the code was, so it may have waited in between.
Wall time ends when everything, GPU work included, is done; host time when the code has returned.

A single run keeps the code's variables and its value. With an option of "repeated runs" the code
becomes the body of a function, nothing is kept, the garbage collector is off, and code on the
%%cudatime line is setup. The repeats end by themselves when the median is known well enough, or
when the time is over; -n alone is {DEFAULT_REPEAT} repeats, -r alone as many loops as last
{MIN_REPEAT_TIME:g} s. Unless -w is given with -n or -r, a few loops more are run while the GPU is
held, to tell what limits the code: the GPU, or the host that launches the work.
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

  %%cudatime --repeat x = torch.rand(4096, 4096, device="cuda")
  x @ x

  %%cudatime --on cpu,cuda:0 x = torch.rand(2048, 2048)
  x @ x
"""

# argparse formats a usage with %.
_USAGE = "%%cudatime [options] STATEMENT\n       %%%%cudatime [options] [SETUP]"


def parser() -> Parser:
    """The options of ``%cudatime``."""
    made = Parser("%cudatime", description=_DESCRIPTION, epilog=_EXAMPLES, usage=_USAGE)
    repeat_options.add_options(made)
    profiling.add_options(made)
    named_results.add_options(made)
    group = made.add_argument_group("many processes")
    cluster.add_targets(group)
    group.add_argument(
        "--barrier",
        action="store_true",
        help="wait for the other ranks of torch.distributed's group before the clock starts",
    )
    add_result_options(made)
    return made


def help_text() -> str:
    """What ``%cudatime?`` shows."""
    return parser().format_help()


def run(magics: Any, line: str, cell: str | None, local_ns: dict[str, Any] | None) -> Any:
    """Run the magic; for code that awaits, return a coroutine that does.

    Raises:
        SpecError: the line does not fit.
    """
    __tracebackhide__ = True
    options, statement = take_options(parser(), line)
    if not take_semicolon(statement)[0] and not options.compare:
        statement = ""  # a ; alone
    if magics.quiet:
        options.quiet = True
    verb = None if cell is not None else _verb(options, line, statement)
    if verb is not None:
        return run_verb(magics, verb[0], verb[1], silent=verb[2], verbs=per_cell.VERBS)
    if options.compare:
        return _compare(magics, options, cell, statement)
    repeated = repeat_options.is_wanted(options)
    if cell is not None and statement and not repeated:
        raise SpecError(
            f"%%cudatime: {statement!r} belongs below, in the cell; with --repeat it is setup"
        )
    if cell is None and not statement:
        raise SpecError("%cudatime: no statement to time. Try %cudatime?")
    source = statement if cell is None else cell
    if (
        cell is None
        and not options.cluster
        and "--" not in line.strip().removesuffix(statement).split()
    ):
        word = take_semicolon(statement)[0]
        check_name("%cudatime", word, per_cell.VERBS, magics.shell.user_ns, local_ns or {})
    if options.cluster:
        everywhere = import_module("gpumagic.magics.engines")
        return everywhere.time(magics, parser(), options, cell, statement)
    if options.targets is not None:
        raise SpecError("-t goes with --cluster; for example: %%cudatime --cluster -t 0:4")
    if options.barrier and not import_module("gpumagic.cluster.distributed").barrier():
        raise SpecError("--barrier: this process is in no group of torch.distributed")
    header = None if cell is None else f"%%cudatime {line}"
    try:
        if not repeated:
            cell_code = compile_cell(magics.shell, source, header=header, local_ns=local_ns)
        else:
            setup = repeat_options.setup_code(options, "" if cell is None else statement)
            loop = compile_loop(magics.shell, source, header=header, local_ns=local_ns, setup=setup)
    except SyntaxError as error:
        # IPython shows every frame of a SyntaxError that a magic raises: the fewer the better.
        raise error.with_traceback(None) from None
    if not repeated:
        return _run_once(Delivery(magics, options), cell_code)
    if options.on is not None:
        return import_module("gpumagic.magics.cudatime.device_comparison").run(
            Delivery(magics, options), loop, magics
        )
    return _run_repeatedly(Delivery(magics, options), loop)


def _verb(options: argparse.Namespace, line: str, statement: str) -> tuple[str, str, bool] | None:
    """The verb, its own options, and whether it is silent; None if a statement follows."""
    of_a_run = (options.name, options.trace, options.nvtx, options.kernels, options.compare)
    if any(of_a_run) or repeat_options.is_wanted(options):
        return None
    written = line.strip().removesuffix(statement)
    words, silent = take_semicolon(statement)
    verb = take_verb(written, words, per_cell.VERBS)
    return None if verb is None else (verb[0], f"{written} {verb[1]}", silent)


def _compare(magics: Any, options: argparse.Namespace, cell: str | None, words: str) -> Any:
    if cell is not None:
        raise SpecError("%%cudatime: --compare shows what is kept; write %cudatime --compare")
    names, silent = take_semicolon(words)
    return named_results.show_kept(magics, names, options, silent=silent)


def _run_once(delivery: Delivery, compiled: CompiledCell) -> Any:
    __tracebackhide__ = True
    options = delivery.options
    more = profiling.OnceMore(delivery)
    scope = _Once(delivery, compiled.compile_time)

    def finish(value: Any) -> Any:
        if not options.output:
            return value
        if value is not None:
            display: Any = import_module("IPython.display").display
            display(value)
        return delivery.result

    if not more.wanted:
        return compiled.run_within(scope, finish)
    return more.after(
        lambda: compiled.run_within(scope, lambda value: value),
        lambda scope: compiled.run_within(scope, lambda value: value),
        finish,
        is_async=compiled.is_async,
    )


class _Once(AbstractContextManager["_Once"]):
    """Times a block and hands the result over when it ends, also by an exception."""

    def __init__(self, delivery: Delivery, compile_time: float) -> None:
        self._delivery = delivery
        self._compile_time = compile_time
        self._range = profiling.nvtx_range(delivery.options)
        self._stopwatch = Stopwatch()

    def __enter__(self) -> _Once:
        __tracebackhide__ = True
        self._range.__enter__()
        try:
            self._stopwatch.start()
        except KeyboardInterrupt as interrupt:
            self._range.__exit__(None, None, None)
            if not self._delivery.options.quiet:
                print("%cudatime: interrupted while waiting for earlier GPU work; nothing was run")
            raise interrupt.with_traceback(None) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        __tracebackhide__ = True
        interrupt: KeyboardInterrupt | None = None
        try:
            try:
                lap = self._stopwatch.stop()
            except KeyboardInterrupt as error:
                interrupt, lap = error, self._stopwatch.give_up()
            partial = kind is not None or interrupt is not None
            result = summarize([lap], compile_time=self._compile_time, partial=partial)
            self._delivery.deliver(result)
        except Exception as failure:  # the cell's value or exception must pass, not ours
            _say(failure)
        finally:
            self._range.__exit__(None, None, None)
        if interrupt is not None:
            raise interrupt.with_traceback(None)  # where we waited says nothing of the cell


def _run_repeatedly(delivery: Delivery, loop: Loop) -> Any:
    __tracebackhide__ = True
    more = profiling.OnceMore(delivery)
    scope = _Repeated(delivery, loop)
    if not more.wanted:
        return _run_within(scope, loop)
    return more.after(
        lambda: _run_within(scope, loop),
        lambda scope: loop(1, scope),
        lambda _: delivery.returned,
        is_async=loop.is_async,
    )


def _run_within(scope: _Repeated, loop: Loop) -> Any:
    __tracebackhide__ = True
    if loop.is_async:

        async def go() -> Any:
            __tracebackhide__ = True
            with awaited(), scope:
                await run_async(loop, scope.repetition)
            return scope.delivery.returned

        return go()
    with scope:
        run_loop(loop, scope.repetition)
    return scope.delivery.returned


class _Repeated(AbstractContextManager["_Repeated"]):
    """Shows progress, and hands over what is complete when it ends, also by an exception."""

    def __init__(self, delivery: Delivery, loop: Loop) -> None:
        options = delivery.options
        self.delivery = delivery
        self._compile_time = loop.compile_time
        self._range = profiling.nvtx_range(options)
        self._progress = Progress(delivery.shell, enabled=not options.quiet)
        self.repetition = repeat_options.repetition(options, self._progress.update)

    def __enter__(self) -> _Repeated:
        self._range.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        __tracebackhide__ = True
        try:
            self._progress.close()
            self._report(partial=kind is not None)
        except Exception as failure:  # the cell's exception must pass, not ours
            _say(failure)
        finally:
            self._range.__exit__(None, None, None)

    def _report(self, *, partial: bool) -> None:
        result = self.repetition.result(self._compile_time, partial=partial)
        if result is not None:
            self.delivery.deliver(result)
        elif not self.delivery.options.quiet:
            print("%cudatime: stopped before the first repeat was complete")


def _say(failure: Exception) -> None:
    print(f"%cudatime: cannot show the times ({text.named(failure)})")
