"""``%gpu cluster``, ``%gpu pin``, ``--cluster``: the GPUs of ipyparallel's engines, and cells."""

from __future__ import annotations

import re
from typing import Any

from gpumagic.cluster import cells, connection, selection
from gpumagic.cluster.connection import Cluster
from gpumagic.cluster.results import ClusterMemory, ClusterTiming, engine_ids
from gpumagic.errors import DeviceError
from gpumagic.magics.delivery import hand_over, warn
from gpumagic.magics.forms import RESULT, ClusterOptions
from gpumagic.magics.gpu.choosing import wants
from gpumagic.magics.gpu.gpu_options import ChoiceOptions, EnginesOptions, PinOptions
from gpumagic.magics.parsing import MagicLine
from gpumagic.magics.shell_state import ShellState
from gpumagic.system.text import harmless

_RESULTS = {"cudatime": ClusterTiming, "gpumem": ClusterMemory}
#: The options that are for this process, and do not go to the engines.
_HERE = {*RESULT, "--cluster", "-t"}
#: A value that needs no quotes and in which nothing is expanded.
_PLAIN = re.compile(r"[\w.,:%/+-]+")


def current(magics: ShellState, profile: str | None = None) -> Cluster:
    """Return the cluster of ``profile``, or the one this shell used last, or that of ``%px``."""
    profile = magics.cluster if profile is None else profile
    found = connection.connect(profile, magics.shell)
    magics.cluster = profile
    return found


def run(magics: ShellState, options: EnginesOptions | PinOptions | ChoiceOptions) -> Any:
    """Run ``%gpu cluster``, ``%gpu pin``, or a choice with ``--cluster``.

    Raises:
        SpecError: the choice does not fit.
        DependencyError: ipyparallel is not installed.
        DeviceError: there is no cluster, or it cannot do what was asked.
    """
    cluster = current(magics, options.profile if isinstance(options, EnginesOptions) else None)
    engines = connection.targets(options.targets, cluster.ids)
    if isinstance(options, EnginesOptions):
        return hand_over(magics.shell, selection.devices(cluster, engines), options)
    claim = magics.claim and not options.no_claim
    try:
        if isinstance(options, PinOptions):
            chosen = selection.pin(cluster, engines, claim=claim)
        else:
            text = " ".join(options.spec)
            asked = wants(magics, options)
            chosen = selection.choose(
                cluster, text, engines, min_free=asked.min_free, idle=asked.idle, claim=claim
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
        first = chosen.per_engine[chosen.too_late[0]]
        where = f" ({first.where})" if first.where is not None else ""
        problem = harmless(f"{engine_ids(chosen.too_late)}: {first.problem}{where}")
        warn(
            f"{problem}. Restart them with Cluster.restart_engines() of ipyparallel, and choose "
            "again: their variables are lost"
        )
    return returned


# --- ``%%cudatime --cluster`` and ``%%gpumem --cluster``: a cell on every engine ------------------


def run_cell(magics: ShellState, magic: str, line: MagicLine, cell: str | None) -> Any:
    """Run a magic with ``--cluster`` on the engines."""
    cluster, options = current(magics), line.options
    assert isinstance(options, ClusterOptions)
    engines = connection.targets(options.targets, cluster.ids)
    sent = options_sent(line)
    results, exception = cells.run(cluster, engines, magic, sent, cell, line.code)
    returned = hand_over(magics.shell, _RESULTS[magic](results), options)
    if exception is not None:
        raise exception.with_traceback(None)
    return returned


def options_sent(line: MagicLine) -> str:
    """Return the options for the engines, whose values are those of this line as they are."""
    return " ".join(
        name if line.given[name] is True else f"{name}={_word(line.texts[name])}"
        for name in line.given
        if name not in _HERE
    )


def _word(text: str) -> str:
    """Return a word that an engine reads as ``text``: if not plain, a string's literal in braces.

    The literal has neither blanks nor quotes nor braces in it, and an engine expands it once.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "{'" + "".join(c if c.isalnum() else f"\\U{ord(c):08x}" for c in text) + "'}"
