"""``%gpu``, ``%gpu ps`` and ``%gpu watch``: the table of devices, once or repeatedly."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpumagic.cuda import init_failure
from gpumagic.magics.gpu import notebooks
from gpumagic.magics.gpu.saved_choice import connection_file
from gpumagic.magics.output import LiveDisplay
from gpumagic.results import DeviceTable, NotebookTable
from gpumagic.selection import gate
from gpumagic.selection.device_table import devices


def table(shell: Any, options: argparse.Namespace) -> DeviceTable:
    """Return the table of devices, with their processes for ``-p``."""
    return _table(shell, options.processes, options.arguments)


def table_with_processes(shell: Any, options: argparse.Namespace) -> DeviceTable | NotebookTable:
    """Return the table of devices with their processes, or for ``--mine`` the notebooks."""
    return notebooks.mine(shell) if options.mine else _table(shell, True, options.arguments)


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


def _table(shell: Any, processes: bool, arguments: bool) -> DeviceTable:
    """Return the table; where CUDA may have failed, also whether it has, which can take seconds."""
    file = connection_file(shell)
    found = devices(processes=processes, arguments=arguments, connection_file=file)
    if not found.cuda_failed and init_failure.has_failed(found):
        found = devices(processes=processes, arguments=arguments, connection_file=file)
    gated = gate.note()
    return found if gated is None else replace(found, notes=(*found.notes, f"{gated}."))
