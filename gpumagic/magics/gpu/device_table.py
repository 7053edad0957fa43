"""``%gpu`` and ``%gpu ps``: the table of devices."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from gpumagic.cuda import context_failure, init_failure
from gpumagic.magics.gpu import notebooks
from gpumagic.magics.gpu.saved_choice import connection_file
from gpumagic.results import DeviceTable, NotebookTable
from gpumagic.selection import gate, launch_blocking
from gpumagic.selection.device_table import devices


def table(shell: Any, options: argparse.Namespace) -> DeviceTable:
    """Return the table of devices, with their processes for ``-p``."""
    return _table(shell, options.processes, options.arguments)


def table_with_processes(shell: Any, options: argparse.Namespace) -> DeviceTable | NotebookTable:
    """Return the table of devices with their processes, or for ``--mine`` the notebooks."""
    return notebooks.mine(shell) if options.mine else _table(shell, True, options.arguments)


def _table(shell: Any, processes: bool, arguments: bool) -> DeviceTable:
    """Return the table; check whether CUDA has failed where it may have, which can take seconds."""
    file = connection_file(shell)
    found = devices(processes=processes, arguments=arguments, connection_file=file)
    if not found.cuda_failed and init_failure.has_failed(found):
        found = devices(processes=processes, arguments=arguments, connection_file=file)
    closed, dead = gate.current(), context_failure.cause()
    if closed is not None:
        found = replace(found, gate=closed.spec, allowed=closed.allowed)
    notes = []
    if dead is not None:
        notes.append(
            f"CUDA has failed in this process ({dead}): %gpu reset --restart starts it again."
        )
    if launch_blocking.is_temporary():
        notes.append(launch_blocking.NOTE)
    notes += [parked] if (parked := _parked()) is not None else []
    return replace(found, notes=(*found.notes, *notes)) if notes else found


def _parked() -> str | None:
    """Return a line on the memory that is parked in this process."""
    if "gpumagic.memory.parking" not in sys.modules:
        return None
    from gpumagic.memory.parking import PARKING

    return PARKING.note()
