"""``%%cudatime --cluster`` and ``%%gpumem --cluster``: a cell on every engine, each measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from gpumagic.cluster import execution
from gpumagic.errors import SpecError
from gpumagic.magics.gpu.cluster import current
from gpumagic.magics.output import LiveDisplay, hand_over
from gpumagic.magics.parsing import Parser, without_options

#: What is done here, with the engines' results; the other options go to the engines.
_HERE = ("--cluster", "-t", "--targets", "-o", "-q", "-v")

_Run = Callable[..., tuple[Any, "BaseException | None"]]


def time(
    magics: Any, parser: Parser, options: argparse.Namespace, line: str, cell: str | None, rest: str
) -> Any:
    """``%%cudatime --cluster``; ``rest`` is what follows the options on the line.

    Raises:
        SpecError: an option has no meaning for engines.
    """
    __tracebackhide__ = True
    for name in ("name", "compare", "trace", "on"):
        if getattr(options, name) not in (None, False):
            raise SpecError(f"--{name} is for this kernel alone: it does not go with --cluster")
    return _measure(execution.timed, magics, parser, options, line, cell, rest)


def memory(
    magics: Any, parser: Parser, options: argparse.Namespace, line: str, cell: str | None, rest: str
) -> Any:
    """``%%gpumem --cluster``.

    Raises:
        SpecError: an option has no meaning for engines.
    """
    __tracebackhide__ = True
    if options.lines or options.functions:
        name = "--lines" if options.lines else "-f"
        raise SpecError(f"{name} is for this kernel alone: it does not go with --cluster")
    return _measure(execution.measured, magics, parser, options, line, cell, rest)


def _measure(
    run: _Run,
    magics: Any,
    parser: Parser,
    options: argparse.Namespace,
    line: str,
    cell: str | None,
    rest: str,
) -> Any:
    __tracebackhide__ = True
    cluster = current(magics)
    engines = cluster.targets(options.targets)
    words = without_options(parser, line, _HERE)
    # A terminal has one place for all output: progress would erase what streams in.
    quiet = options.quiet or not hasattr(magics.shell, "kernel")
    with LiveDisplay(magics.shell, quiet=quiet) as live:

        def progress(done: int, of: int, seconds: float) -> None:
            if seconds > 2:
                live.text(f"{done} of {of} engines done ({seconds:.0f} s)")

        if cell is None:
            result, exception = run(cluster, rest, engines, words, progress, line=True)
        else:
            result, exception = run(cluster, cell, engines, words, progress, setup=rest)
    returned = hand_over(magics.shell, result, options)
    if exception is not None:
        raise exception.with_traceback(None)
    return returned
