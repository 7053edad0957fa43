"""``%gpumem vars``, ``free`` and ``explain``: what holds GPU memory, and how to free it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from gpumagic.magics.output import hand_over, say
from gpumagic.magics.parsing import Parser, add_result_options
from gpumagic.memory.parking import PARKING
from gpumagic.render.units import bytes_

_MESSAGES = {
    True: "A cell that runs out of GPU memory is explained below its traceback.",
    False: "Cells that run out of GPU memory are not explained; '%gpumem explain on' does again.",
}


def parser(verb: str) -> Parser:
    """Return the parser of the options of ``%gpumem VERB``."""
    made = Parser(f"%gpumem {verb}")
    if verb == "vars":
        made.add_argument(
            "--gc",
            dest="scan",
            action="store_true",
            help="look through all objects of the process for what no variable references",
        )
    elif verb == "free":
        made.add_argument("names", nargs="*", metavar="NAME", help="variables to delete as well")
        made.add_argument(
            "--dry-run", action="store_true", help="show what it would free, and do nothing"
        )
    else:
        made.add_argument("state", nargs="?", choices=("on", "off"))
    add_result_options(made)
    return made


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
