"""``%gpu`` and ``%gpu ps``: the table of devices."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from gpumagic.cuda import context_failure, devices, init_failure
from gpumagic.results import DeviceTable
from gpumagic.selection import gate, launch_blocking


def table(shell: Any, options: argparse.Namespace) -> DeviceTable:
    """Return the table of devices, with their processes for ``-p``."""
    return _table(options.processes, options.arguments)


def table_with_processes(shell: Any, options: argparse.Namespace) -> DeviceTable:
    """Return the table of devices with their processes."""
    return _table(True, options.arguments)


def _table(processes: bool, arguments: bool) -> DeviceTable:
    """Return the table; where CUDA may have failed, also whether it has, which can take seconds."""
    found = devices.devices(processes=processes, arguments=arguments)
    if not found.cuda_failed and init_failure.has_failed(found):
        found = devices.devices(processes=processes, arguments=arguments)
    gated, dead = gate.note(), context_failure.cause()
    notes = [] if gated is None else [f"{gated}."]
    if dead is not None:
        notes.append(f"This process's CUDA is over ({dead}): %gpu reset --restart starts it again.")
    if launch_blocking.is_temporary():
        notes.append(launch_blocking.NOTE)
    return replace(found, notes=(*found.notes, *notes)) if notes else found
