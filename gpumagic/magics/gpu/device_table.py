"""``%gpu``, ``%gpu ps`` and ``%gpu watch``: the table of devices, once or repeatedly."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpumagic.cuda import devices, init_failure
from gpumagic.magics.output import LiveDisplay
from gpumagic.results import DeviceTable
from gpumagic.selection import gate


def table(shell: Any, options: argparse.Namespace) -> DeviceTable:
    """Return the table of devices, with their processes for ``-p``."""
    return _table(options.processes, options.arguments)


def table_with_processes(shell: Any, options: argparse.Namespace) -> DeviceTable:
    """Return the table of devices with their processes."""
    return _table(True, options.arguments)


def watch(shell: Any, options: argparse.Namespace) -> DeviceTable:
    """Show the table repeatedly in one place until interrupted; return the last one."""
    ends = None if options.duration is None else time.monotonic() + options.duration
    current = table(shell, options)
    with LiveDisplay(shell, quiet=options.quiet) as live:
        with suppress(KeyboardInterrupt):  # the way to stop it
            live.result(current)
            while ends is None or time.monotonic() < ends:
                time.sleep(1.0 if options.every is None else options.every)
                current = table(shell, options)
                live.result(current)
        live.keep()
    options.quiet = True  # the last table is on the screen already
    return current


def _table(processes: bool, arguments: bool) -> DeviceTable:
    """Return the table; where CUDA may have failed, also whether it has, which can take seconds."""
    found = devices.devices(processes=processes, arguments=arguments)
    if not found.cuda_failed and init_failure.has_failed(found):
        found = devices.devices(processes=processes, arguments=arguments)
    gated, parked = gate.note(), _parked()
    notes = [f"{gated}."] if gated is not None else []
    notes += [parked] if parked is not None else []
    return replace(found, notes=(*found.notes, *notes)) if notes else found


def _parked() -> str | None:
    """Return what is parked in this process, as a line."""
    if "gpumagic.memory.parking" not in sys.modules:
        return None
    from gpumagic.memory.parking import PARKING

    return PARKING.note()
