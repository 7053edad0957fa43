"""``%%cudatime --cluster``, ``%%gpumem --cluster``: a cell on every engine of ipyparallel's."""

from __future__ import annotations

import re
from typing import Any

from gpumagic.cluster import cells, connection
from gpumagic.cluster.cell_results import ClusterMemory, ClusterTiming
from gpumagic.cluster.connection import Cluster
from gpumagic.magics.delivery import hand_over
from gpumagic.magics.magic_state import MagicState
from gpumagic.magics.option_forms import RESULT, ClusterOptions
from gpumagic.magics.parsing import MagicLine

_RESULTS = {"cudatime": ClusterTiming, "gpumem": ClusterMemory}
#: The options that are for this process, and do not go to the engines.
_HERE = {*RESULT, "--cluster", "-t"}
#: A value that needs no quotes and in which nothing is expanded.
_PLAIN = re.compile(r"[\w.,:%/+-]+")


def current(magics: MagicState, profile: str | None = None) -> Cluster:
    """Return the cluster of ``profile``, or the one this shell used last, or that of ``%px``."""
    profile = magics.cluster if profile is None else profile
    found = connection.connect(profile, magics.shell)
    magics.cluster = profile
    return found


def run_cell(magics: MagicState, magic: str, line: MagicLine, cell: str | None) -> Any:
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
    """Return the options for the engines, with their values as they are on this line."""
    return " ".join(
        name if value is True else f"{name}={_word(value)}"
        for name, value in line.given.items()
        if name not in _HERE
    )


def _word(value: float | str) -> str:
    """Return a word that an engine reads as a value: if not plain, a string's literal in braces.

    The literal has neither blanks nor quotes nor braces in it, and an engine expands it once.
    """
    text = f"{value:.9f}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    return "{'" + "".join(c if c.isalnum() else f"\\U{ord(c):08x}" for c in text) + "'}"
