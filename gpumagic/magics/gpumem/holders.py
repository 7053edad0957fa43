"""``%gpumem vars`` and ``free``: what holds GPU memory, and how to free it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from gpumagic.magics.output import hand_over
from gpumagic.memory.parking import PARKING
from gpumagic.render.units import bytes_


def run(verb: str, magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    """Run the verb.

    Raises:
        SpecError: a variable that is to be freed does not exist.
        DeviceError: CUDA has failed in this process.
    """
    if verb == "vars":
        from gpumagic.memory.holders import holders

        found: Any = holders(shell=magics.shell)
    else:
        from gpumagic.memory.freeing import free

        before = sum(PARKING.size().values())
        found = free(magics.shell, options.names)
        deleted = before - sum(PARKING.size().values())
        if deleted:
            told = f"of what was parked in host memory, {bytes_(deleted)} are deleted"
            found = replace(found, notes=(*found.notes, told))
    note = PARKING.note()
    if note is not None:
        found = replace(found, notes=(*found.notes, note))
    return hand_over(magics.shell, found, options, silent=silent)
