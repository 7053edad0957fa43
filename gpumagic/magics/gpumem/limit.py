"""``%gpumem limit``: a bound on torch's allocator, as if the devices were smaller."""

from __future__ import annotations

import argparse
from typing import Any

from gpumagic.magics.argument_types import size
from gpumagic.magics.output import hand_over
from gpumagic.magics.parsing import Parser, add_result_options
from gpumagic.memory.limit import LIMIT
from gpumagic.results.limit import LimitState

#: Without an argument the limit is shown.
_SHOW = object()


def parser(verb: str) -> Parser:
    """Return the parser of the options of ``%gpumem limit``."""
    made = Parser(f"%gpumem {verb}")
    made.add_argument("size", nargs="?", type=_size_or_off, default=_SHOW, metavar="SIZE|off")
    add_result_options(made)
    return made


def _size_or_off(text: str) -> int | None:
    if text.lower() == "off":
        return None
    found = size(text)
    if found <= 0:
        raise argparse.ArgumentTypeError("0 bytes are no limit; write 16GiB, or off")
    return found


def run(verb: str, magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    """Set, lift or show the limit.

    Raises:
        DeviceError: torch is not there, cannot bound its allocator, or holds more already outside
            of it.
    """
    if options.size is None:
        LIMIT.lift()
    elif options.size is not _SHOW:
        LIMIT.set(options.size)
    return hand_over(magics.shell, LimitState(LIMIT.size), options, silent=silent)
