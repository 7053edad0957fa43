"""``%gpu`` and ``%gpu ps``: the table of devices."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from gpumagic.cuda import failure
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
    if not found.cuda_failed and failure.has_failed(found):
        found = devices(processes=processes, arguments=arguments, connection_file=file)
    found = _with_own_parked(found)
    closed, dead = gate.current(), failure.dead_context_note()
    if closed is not None:
        found = replace(found, gate=closed.spec, allowed=closed.allowed)
    notes = []
    if dead is not None:
        notes.append(dead)
    if launch_blocking.is_temporary():
        notes.append(launch_blocking.NOTE)
    notes += [parked] if (parked := _parked()) is not None else []
    return replace(found, notes=(*found.notes, *notes)) if notes else found


def _with_own_parked(found: DeviceTable) -> DeviceTable:
    """Return the table with this process and its claims marked as parked, also if unpublished."""
    if not notebooks.is_parked():
        return found

    def marked(each: Any) -> Any:
        return replace(each, parked=True) if each.own else each

    devices = []
    for device in found:
        known = device.processes
        processes = None if known is None else tuple(map(marked, known))
        claims = tuple(map(marked, device.claims))
        devices.append(replace(device, claims=claims, processes=processes))
    return replace(found, devices=tuple(devices))


def _parked() -> str | None:
    """Return a line on the memory that is parked in this process."""
    if not notebooks.is_parked():
        return None
    from gpumagic.memory.parking import PARKING

    return PARKING.note()
