"""``%gpumem limit``: a bound on torch's allocator, as if the devices were smaller."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gpumagic.cells.hooks import CellHook
from gpumagic.magics.extension import of
from gpumagic.magics.gpumem.options import SHOW
from gpumagic.magics.output import hand_over
from gpumagic.memory.limit import LIMIT
from gpumagic.system import text


def run(verb: str, magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    """Set, lift or show the limit.

    Raises:
        DeviceError: torch is not there, cannot bound its allocator, or holds more already outside
            of it.
    """
    if options.size is None:
        LIMIT.lift()
        of(magics.shell).hooks.remove(_HOOK)
    elif options.size is not SHOW:
        set_limit(magics.shell, options.size)
    return hand_over(magics.shell, LIMIT.state(), options, silent=silent)


def set_limit(shell: Any, size: int) -> None:
    """Set the limit, and adapt it before every cell: to devices and libraries used since.

    Raises:
        DeviceError: as `run`.
    """
    LIMIT.set(size)
    of(shell).hooks.add(_HOOK)


def _failed(error: Exception) -> None:
    print(
        f"%gpumem limit: not adapted any more to memory outside torch's allocator "
        f"({text.named(error)})",
        file=sys.stderr,
    )


_HOOK: CellHook[None] = CellHook(
    before=lambda info, outer: LIMIT.update(), after=lambda begun, result: None, failed=_failed
)
