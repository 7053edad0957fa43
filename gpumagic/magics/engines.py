"""``%%cudatime --cluster`` and ``%%gpumem --cluster``: a cell on every engine, each measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from gpumagic.cluster import execution
from gpumagic.cluster.cell_plan import CellPlan
from gpumagic.errors import SpecError
from gpumagic.magics.gpu.cluster import current
from gpumagic.magics.output import LiveDisplay, hand_over
from gpumagic.magics.parsing import Parser

#: The options that are for this kernel, not for the engines.
_LOCAL = ("--cluster", "-t", "-o", "-q", "-v")

_Run = Callable[..., tuple[Any, "BaseException | None"]]


def time(
    magics: Any, parser: Parser, options: argparse.Namespace, cell: str | None, rest: str
) -> Any:
    """Run ``%%cudatime --cluster``; ``rest`` is the code after the options on its line.

    Raises:
        SpecError: an option has no meaning for engines.
    """
    __tracebackhide__ = True
    for name in ("name", "compare", "trace", "on", "flops", "energy", "save", "against"):
        if getattr(options, name) not in (None, False):
            raise SpecError(f"--{name} is for this kernel alone: it does not go with --cluster")
    return _measure(
        execution.timed, magics, options, _plan("cudatime", parser, options, cell, rest)
    )


def memory(
    magics: Any, parser: Parser, options: argparse.Namespace, cell: str | None, rest: str
) -> Any:
    """Run ``%%gpumem --cluster``; ``rest`` is the code after the options on its line.

    Raises:
        SpecError: an option has no meaning for engines.
    """
    __tracebackhide__ = True
    for name, given in (
        ("--lines", options.lines),
        ("-f", options.functions),
        ("--fit", options.fit),
        ("--save", options.save),
        ("--against", options.against),
    ):
        if given:
            raise SpecError(f"{name} is for this kernel alone: it does not go with --cluster")
    return _measure(
        execution.measured, magics, options, _plan("gpumem", parser, options, cell, rest)
    )


def _plan(
    magic: str, parser: Parser, options: argparse.Namespace, cell: str | None, rest: str
) -> CellPlan:
    given = {n: value for n, value in parser.given(options).items() if n not in _LOCAL}
    if cell is None:
        return CellPlan(magic, rest, given, is_statement=True)
    return CellPlan(magic, cell, given, setup=rest)


def _measure(run: _Run, magics: Any, options: argparse.Namespace, plan: CellPlan) -> Any:
    __tracebackhide__ = True
    cluster = current(magics)
    engines = cluster.targets(options.targets)
    # A terminal has one place for all output: progress would erase what streams in.
    quiet = options.quiet or not hasattr(magics.shell, "kernel")
    with LiveDisplay(magics.shell, quiet=quiet) as live:

        def progress(done: int, of: int, seconds: float) -> None:
            if seconds > 2:
                live.text(f"{done} of {of} engines done ({seconds:.0f} s)")

        result, exception = run(cluster, plan, engines, progress)
    returned = hand_over(magics.shell, result, options)
    if exception is not None:
        raise exception.with_traceback(None)
    return returned
