"""``%gpumem record``, ``snapshot`` and ``cells``: the allocator's history."""

from __future__ import annotations

import argparse
from typing import Any

from gpumagic.magics.extension import of as extension_of
from gpumagic.magics.file_names import expanded
from gpumagic.magics.output import hand_over
from gpumagic.memory.history import MAX_ENTRIES, History, write_snapshot
from gpumagic.results.base import Result
from gpumagic.system.paths import output_path


def run(verb: str, magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    """Run the verb.

    Raises:
        DeviceError: there is no history, or no allocator that has one.
        SpecError: the file cannot be written.
    """
    history = of(magics.shell)
    result: Result
    if verb == "snapshot":
        result = write_snapshot(output_path(expanded(magics.shell, options.file)))
    elif verb == "cells":
        result = history.cells()
    elif options.switch == "on":
        result = history.on(options.entries or MAX_ENTRIES)
    elif options.switch == "off":
        result = history.off()
    else:
        result = history.state()
    return hand_over(magics.shell, result, options, silent=silent)


def of(shell: Any) -> History:
    """Return the history of a shell, made at the first call."""
    extension = extension_of(shell)
    if extension.memory_history is None:
        extension.memory_history = History(shell, extension.hooks)
    return extension.memory_history
