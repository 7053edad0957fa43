"""``%gpumem record``, ``snapshot``, ``cells`` and ``limit``: what torch's allocator can do."""

from __future__ import annotations

import argparse
from typing import Any

from gpumagic.magics.argument_types import expanded
from gpumagic.magics.extension import of as extension_of
from gpumagic.magics.gpumem.options import SHOW
from gpumagic.magics.output import hand_over
from gpumagic.memory.history import History, live_by_cell, write_snapshot
from gpumagic.memory.limit import LIMIT
from gpumagic.results.base import Result
from gpumagic.system.paths import output_path


def run(verb: str, magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    """Run the verb.

    Raises:
        DeviceError: torch or a GPU is missing, CUDA is not in use, or the allocator cannot do it.
        SpecError: the file cannot be written.
    """
    shell = magics.shell
    result: Result
    if verb == "snapshot":
        result = write_snapshot(output_path(expanded(shell, options.file)))
    elif verb == "cells":
        result = live_by_cell(shell)
    elif verb == "limit":
        if options.size is None:
            LIMIT.lift()
        elif options.size is not SHOW:
            LIMIT.set(options.size)
        result = LIMIT.state()
    else:
        history = of(shell)
        switch = {"on": history.on, "off": history.off}.get(options.switch, history.state)
        result = switch()
    return hand_over(shell, result, options, silent=silent)


def of(shell: Any) -> History:
    """Return the history of a shell, made at the first call."""
    extension = extension_of(shell)
    if extension.memory_history is None:
        extension.memory_history = History()
    return extension.memory_history
