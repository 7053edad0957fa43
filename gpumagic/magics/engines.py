"""``%%cudatime --cluster`` and ``%%gpumem --cluster``: a cell on every engine, each measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from gpumagic.cluster import execution
from gpumagic.cluster.cell_plan import CellPlan
from gpumagic.magics.gpu.cluster import current
from gpumagic.magics.output import LiveDisplay, hand_over
from gpumagic.magics.parsing import MagicLine

#: The options that are for this kernel; the forms of the magics refuse others.
_RESULT_OPTIONS = ("--cluster", "-t", "-o", "-q", "-v")

_Run = Callable[..., tuple[Any, "BaseException | None"]]

#: What runs a magic on the engines.
_MAGICS: Mapping[str, _Run] = {"cudatime": execution.timed, "gpumem": execution.measured}


def run(magics: Any, magic: str, line: MagicLine, cell: str | None, code: str) -> Any:
    """Run a magic with ``--cluster``; ``code`` is the code after the options on its line."""
    __tracebackhide__ = True
    sent = {name: value for name, value in line.given.items() if name not in _RESULT_OPTIONS}
    if cell is None:
        plan = CellPlan(magic, code, sent, is_statement=True)
    else:
        plan = CellPlan(magic, cell, sent, setup=code)
    return _measure(_MAGICS[magic], magics, line.options, plan)


def _measure(run: _Run, magics: Any, options: argparse.Namespace, plan: CellPlan) -> Any:
    __tracebackhide__ = True
    cluster = current(magics)
    engines = cluster.targets(options.targets)
    # In a terminal all output is one stream: progress would erase what engines print.
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
