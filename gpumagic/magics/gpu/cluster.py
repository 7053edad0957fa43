"""``%gpu cluster``, ``%gpu pin``, ``--cluster``: the GPUs of ipyparallel's engines, and cells."""

from __future__ import annotations

import argparse
import re
from typing import Any

from gpumagic.cluster import cells, connection, selection
from gpumagic.cluster.connection import Cluster
from gpumagic.errors import DeviceError
from gpumagic.magics.output import LiveDisplay, hand_over, warn
from gpumagic.magics.parsing import MagicLine
from gpumagic.results.cluster import ClusterMemory, ClusterSelection, ClusterTiming, engine_ids
from gpumagic.selection.auto import Wants
from gpumagic.system.text import harmless

_RESULTS = {"cudatime": ClusterTiming, "gpumem": ClusterMemory}
_IN_QUOTES = r"'[^']*'|\"[^\"]*\""
#: The options that are for this process, and do not go to the engines; or a text in quotes.
_HERE = re.compile(
    rf"(?<!\S)(?:--cluster|-[oq]+|(?:-t|--targets|-v)[ =]*(?:{_IN_QUOTES}|\S+))(?!\S)"
    rf"|({_IN_QUOTES})"
)


def current(magics: Any, profile: str | None = None) -> Cluster:
    """Return the cluster of ``profile``, or the one this shell used last, or that of ``%px``."""
    extension = magics.extension
    profile = extension.cluster if profile is None else profile
    found = connection.connect(profile, magics.shell)
    extension.cluster = profile
    return found


def run(magics: Any, verb: str, options: argparse.Namespace, wants: Wants) -> Any:
    """Run a verb, or a choice with ``--cluster``.

    Raises:
        SpecError: the choice does not fit.
        DependencyError: ipyparallel is not installed.
        DeviceError: there is no cluster, or it cannot do what was asked.
    """
    cluster = current(magics, options.profile)
    engines = cluster.targets(options.targets)
    claim = magics.claim and not options.no_claim
    if verb == "cluster":
        return hand_over(magics.shell, selection.devices(cluster, engines), options)
    try:
        if verb == "pin":
            chosen = selection.pin(cluster, engines, claim=claim)
        else:
            chosen = selection.choose(
                cluster,
                " ".join(options.spec),
                engines,
                min_free=wants.min_free,
                idle=wants.idle,
                claim=claim,
            )
    except KeyboardInterrupt:
        raise DeviceError(
            "interrupted: some engines may have chosen already; see %gpu cluster"
        ) from None
    returned = hand_over(magics.shell, chosen, options)
    if not chosen.per_engine:
        engine, reason = next(iter(chosen.failed.items()))
        raise DeviceError(f"no engine was changed; engine {engine}: {reason}")
    if chosen.too_late:
        warn(_too_late(chosen))
    return returned


def _too_late(chosen: ClusterSelection) -> str:
    """Return what to do where CUDA is initialised already."""
    first = chosen.per_engine[chosen.too_late[0]]
    where = f" ({first.where})" if first.where is not None else ""
    reason = harmless(f"{str(first.problem).partition(': ')[2]}{where}")
    return (
        f"Too late on {engine_ids(chosen.too_late)}: {reason}. Restart them with "
        "Cluster.restart_engines() of ipyparallel, and choose again: their variables are lost"
    )


# --- ``%%cudatime --cluster`` and ``%%gpumem --cluster``: a cell on every engine ------------------


def run_cell(magics: Any, magic: str, line: MagicLine, cell: str | None) -> Any:
    """Run a magic with ``--cluster`` on the engines."""
    cluster = current(magics)
    engines = cluster.targets(line.options.targets)
    # In a terminal all output is one stream: progress would erase what engines print.
    quiet = line.options.quiet or not hasattr(magics.shell, "kernel")
    with LiveDisplay(magics.shell, quiet=quiet) as live:

        def progress(done: int, of: int, seconds: float) -> None:
            if seconds > 2:
                live.text(f"{done} of {of} engines done ({seconds:.0f} s)")

        sent = options_sent(line.text.strip().removesuffix(line.code))
        outcome = cells.run(cluster, engines, magic, sent, cell, line.code, progress)
    result = _RESULTS[magic](outcome.engines)
    returned = hand_over(magics.shell, result, line.options)
    if outcome.exception is not None:
        raise outcome.exception.with_traceback(None)
    return returned


def options_sent(written: str) -> str:
    """Return the options for the engines as they were written, without those for this process."""
    kept = _HERE.sub(lambda match: match[1] or "", written)
    return kept.strip().removesuffix("--").rstrip()
