"""``%%cudatime --cluster`` and ``%%gpumem --cluster``: a cell on every engine, each measured."""

from __future__ import annotations

import re
from typing import Any

from gpumagic.cluster import cells
from gpumagic.magics.gpu.cluster import current
from gpumagic.magics.output import LiveDisplay, hand_over
from gpumagic.magics.parsing import MagicLine
from gpumagic.results.cluster import ClusterMemory, ClusterTiming

_RESULTS = {"cudatime": ClusterTiming, "gpumem": ClusterMemory}
#: The options that are for this kernel, and do not go to the engines.
_HERE = re.compile(r"(?<!\S)(--cluster|-[oq]+|(-t|--targets|-v)[ =]*\S+)(?!\S)")


def run(magics: Any, magic: str, line: MagicLine, cell: str | None, code: str) -> Any:
    """Run a magic with ``--cluster``; ``code`` is the code after the options on its line."""
    __tracebackhide__ = True
    cluster = current(magics)
    engines = cluster.targets(line.options.targets)
    # In a terminal all output is one stream: progress would erase what engines print.
    quiet = line.options.quiet or not hasattr(magics.shell, "kernel")
    with LiveDisplay(magics.shell, quiet=quiet) as live:

        def progress(done: int, of: int, seconds: float) -> None:
            if seconds > 2:
                live.text(f"{done} of {of} engines done ({seconds:.0f} s)")

        sent = options_sent(line.text.strip().removesuffix(line.code))
        outcome = cells.run(cluster, engines, magic, sent, cell, code, progress)
    result = _RESULTS[magic](outcome.engines)
    returned = hand_over(magics.shell, result, line.options)
    if outcome.exception is not None:
        raise outcome.exception.with_traceback(None)
    return returned


def options_sent(written: str) -> str:
    """Return the options for the engines as they were written, without those for this kernel."""
    parts = re.split(r"('[^']*'|\"[^\"]*\")", written)  # every other one is in quotes
    parts[::2] = [_HERE.sub("", part) for part in parts[::2]]
    return "".join(parts).strip().removesuffix("--").rstrip()
