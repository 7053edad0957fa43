"""``%gpumem vars``, ``free``, ``limit``, ``record``, ``cells`` and ``snapshot``."""

from __future__ import annotations

import argparse
from typing import Any

from gpumagic.magics.argument_types import expanded
from gpumagic.magics.extension import of as extension_of
from gpumagic.magics.gpumem.options import SHOW
from gpumagic.magics.output import hand_over
from gpumagic.memory import torch_memory
from gpumagic.memory.limit import LIMIT
from gpumagic.results.base import Result
from gpumagic.system.paths import output_path


def run(verb: str, magics: Any, options: argparse.Namespace) -> Any:
    """Run the verb.

    Raises:
        DeviceError: torch or a GPU is missing, CUDA is not in use or has failed, or the allocator
            cannot do it.
        SpecError: the file cannot be written, or a variable that is to be freed does not exist.
    """
    shell = magics.shell
    result: Result
    if verb in ("vars", "free"):
        from gpumagic.memory.freeing import free
        from gpumagic.memory.holders import holders

        names = ",".join(options.names or ()).split(",")
        result = holders(shell=shell) if verb == "vars" else free(shell, [*filter(None, names)])
    elif verb == "snapshot":
        result = torch_memory.write_snapshot(output_path(expanded(shell, options.file)))
    elif verb == "cells":
        result = torch_memory.live_by_cell(shell)
    elif verb == "limit":
        if options.size is None:
            LIMIT.lift()
        elif options.size is not SHOW:
            LIMIT.set(options.size)
        result = LIMIT.state()
    else:
        result = _record(shell, options.switch)
    return hand_over(shell, result, options)


def _record(shell: Any, switch: str | None) -> Result:
    extension = extension_of(shell)
    if extension.memory_history is None:
        extension.memory_history = torch_memory.History()
    recorded = extension.memory_history
    change = {"on": recorded.on, "off": recorded.off}.get(switch or "", recorded.state)
    return change()
