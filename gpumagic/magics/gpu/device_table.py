"""``%gpu`` and ``%gpu ps``: the table of devices."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from gpumagic.cuda import devices, init_failure
from gpumagic.results import DeviceTable
from gpumagic.selection import gate


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
    gated = gate.note()
    return found if gated is None else replace(found, notes=(*found.notes, f"{gated}."))
