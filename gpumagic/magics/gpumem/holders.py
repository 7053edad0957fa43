"""``%gpumem vars``, ``free`` and ``explain``: what holds GPU memory, and how to free it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from gpumagic.magics.output import hand_over, say
from gpumagic.memory.parking import PARKING
from gpumagic.render.units import bytes_

_MESSAGES = {
    True: "A cell that runs out of GPU memory is explained below its traceback.",
    False: "Cells that run out of GPU memory are not explained; '%gpumem explain on' does again.",
}


def run(verb: str, magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    """Run the verb.

    Raises:
        SpecError: a variable that is to be freed does not exist.
        DeviceError: CUDA has failed in this process.
    """
    if verb == "explain":
        return _explain(magics, options, silent)
    if verb == "vars":
        from gpumagic.memory.attribution import holders

        found: Any = holders(shell=magics.shell, gc=options.scan)
    else:
        from gpumagic.memory.freeing import free

        before = sum(PARKING.size().values())
        found = free(magics.shell, options.names, dry_run=options.dry_run)
        deleted = before - sum(PARKING.size().values())
        if deleted:
            told = f"of what was parked in host memory, {bytes_(deleted)} are deleted"
            found = replace(found, notes=(*found.notes, told))
    note = PARKING.note()
    if note is not None:
        found = replace(found, notes=(*found.notes, note))
    return hand_over(magics.shell, found, options, silent=silent)


def _explain(magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    if options.state is not None:
        magics.explain_oom = options.state == "on"
    if not (options.quiet or silent):
        say(magics.shell, _MESSAGES[magics.explain_oom])
    if options.variable:
        magics.shell.user_ns[options.variable] = magics.explain_oom
    return magics.explain_oom if options.output else None
