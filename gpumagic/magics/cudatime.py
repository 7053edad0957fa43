"""``%cudatime`` and ``%%cudatime``: how long code takes on the GPU, on the wall and on the CPU."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from gpumagic.cell import CompiledCell, compile_cell, compile_loop
from gpumagic.errors import SpecError
from gpumagic.loop import Loop
from gpumagic.magics.options import Parser, add_result_options, take_options
from gpumagic.magics.progress import Progress
from gpumagic.magics.show import hand_over
from gpumagic.measure import Stopwatch, summarize
from gpumagic.repetition import DEFAULT_REPEAT, Repetition, run_async
from gpumagic.repetition import run as run_loop
from gpumagic.results import CudaTiming

_DESCRIPTION = f"""\
Time code on the GPU, on the wall and on the CPU.

  %cudatime STATEMENT     run the statement once, like %time
  %%cudatime              run the cell once, like %%time
  %%cudatime -n 10 -r 5   run it many times, like %%timeit: 5 repeats of 10 loops

GPU time is taken by CUDA events on every device that is in use, and includes side streams and
other threads: from the start of the code until the device's last work is done. A figure with ≤ is
an upper bound: the GPU was done as soon as the code was, so it may have waited in between.
Wall time ends when everything, GPU work included, is done; host time when the code has returned.

A single run keeps the code's variables and its value; with -n, -r or -w the code becomes the body
of a function, nothing is kept, and the garbage collector is off. What is not given is
{DEFAULT_REPEAT} repeats, as many loops as last 0.2 s, and 1 loop of warm-up.
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
"""

_OPTIONS = "[-n N] [-r R] [-w W] [-o] [-v NAME] [-q]"
# argparse formats a usage with %.
_USAGE = f"%%cudatime {_OPTIONS} STATEMENT\n       %%%%cudatime {_OPTIONS}"


def parser() -> Parser:
    """The options of ``%cudatime``."""
    made = Parser("%cudatime", description=_DESCRIPTION, epilog=_EXAMPLES, usage=_USAGE)
    group = made.add_argument_group("repeated runs")
    group.add_argument(
        "-n", dest="loops", metavar="N", type=_at_least(1), help="loops in each repeat"
    )
    group.add_argument(
        "-r", dest="repeat", metavar="R", type=_at_least(1), help="repeats, each timed by itself"
    )
    group.add_argument(
        "-w", dest="warmup", metavar="W", type=_at_least(0), help="loops before the first repeat"
    )
    add_result_options(made)
    return made


def _at_least(least: int) -> Callable[[str], int]:
    def number(word: str) -> int:
        if not word.isdecimal() or int(word) < least:
            raise argparse.ArgumentTypeError(f"{word!r} is not a number of {least} or more")
        return int(word)

    return number


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
    if magics.quiet:
        options.quiet = True
    if cell is not None and statement:
        raise SpecError(f"%%cudatime: {statement!r} belongs below, in the cell")
    if cell is None and not statement:
        raise SpecError("%cudatime: no statement to time. Try %cudatime?")
    source = statement if cell is None else cell
    header = None if cell is None else f"%%cudatime {line}"
    try:
        if options.loops is options.repeat is options.warmup is None:
            cell_code = compile_cell(magics.shell, source, header=header, local_ns=local_ns)
        else:
            loop = compile_loop(magics.shell, source, header=header, local_ns=local_ns)
    except SyntaxError as error:
        # IPython shows every frame of a SyntaxError that a magic raises: the fewer the better.
        raise error.with_traceback(None) from None
    if options.loops is options.repeat is options.warmup is None:
        return _run_once(magics.shell, cell_code, options)
    return _run_repeatedly(magics.shell, loop, options)


def _run_once(shell: Any, compiled: CompiledCell, options: argparse.Namespace) -> Any:
    __tracebackhide__ = True
    scope = _Once(shell, options, compiled.compile_time)

    def finish(value: Any) -> Any:
        if not options.output:
            return value
        if value is not None:
            display: Any = import_module("IPython.display").display
            display(value)
        return scope.result

    return compiled.run_within(scope, finish)


class _Once(AbstractContextManager["_Once"]):
    """Times a block and hands the result over when it ends, also by an exception."""

    def __init__(self, shell: Any, options: argparse.Namespace, compile_time: float) -> None:
        self._shell = shell
        self._options = options
        self._compile_time = compile_time
        self._stopwatch = Stopwatch()
        self.result: CudaTiming | None = None

    def __enter__(self) -> _Once:
        self._stopwatch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        __tracebackhide__ = True
        try:
            lap = self._stopwatch.stop()
            partial = kind is not None
            self.result = summarize([lap], compile_time=self._compile_time, partial=partial)
            hand_over(self._shell, self.result, self._options)
        except KeyboardInterrupt:
            print("%cudatime: interrupted while waiting for the GPU: no times")
            raise
        except Exception as failure:  # the cell's value or exception must pass, not ours
            _say(failure)


def _run_repeatedly(shell: Any, loop: Loop, options: argparse.Namespace) -> Any:
    __tracebackhide__ = True
    scope = _Repeated(shell, options, loop)
    if loop.is_async:

        async def go() -> Any:
            __tracebackhide__ = True
            with scope:
                await run_async(loop, scope.repetition)
            return scope.returned

        return go()
    with scope:
        run_loop(loop, scope.repetition)
    return scope.returned


class _Repeated(AbstractContextManager["_Repeated"]):
    """Shows progress, and hands over what is complete when it ends, also by an exception."""

    def __init__(self, shell: Any, options: argparse.Namespace, loop: Loop) -> None:
        self._shell = shell
        self._options = options
        self._compile_time = loop.compile_time
        self._progress = Progress(shell, enabled=not options.quiet)
        self.repetition = Repetition(
            options.loops, options.repeat, options.warmup, progress=self._progress.update
        )
        self.returned: CudaTiming | None = None

    def __enter__(self) -> _Repeated:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        __tracebackhide__ = True
        try:
            self._progress.close()
            self._report(partial=kind is not None)
        except Exception as failure:  # the cell's exception must pass, not ours
            _say(failure)

    def _report(self, *, partial: bool) -> None:
        result = self.repetition.result(self._compile_time, partial=partial)
        if result is not None:
            self.returned = hand_over(self._shell, result, self._options)
        elif not self._options.quiet:
            print("%cudatime: stopped before the first repeat was complete")


def _say(failure: Exception) -> None:
    print(f"%cudatime: cannot show the times ({type(failure).__name__}: {failure})")
