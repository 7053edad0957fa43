"""The table of devices, with the claims on each and the notebooks that use it."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.cuda import devices as cuda_devices
from gpumagic.results import Claim, DeviceTable
from gpumagic.selection import claims, notebooks
from gpumagic.selection.claim_entry import ClaimError, TooManyFilesError


def devices(
    *, processes: bool = True, arguments: bool = False, connection_file: str | None = None
) -> DeviceTable:
    """Return the GPUs of this machine, which of them this process sees, and the claims on them.

    Does not initialise CUDA and imports no torch. Without NVML the CUDA driver lists the devices in
    a child process, and fields that only NVML knows are None. On a machine without GPUs, or without
    a driver, the table is empty and its ``error`` says why.

    ``processes`` also looks up each process's user, command and notebook; with ``arguments`` the
    whole command lines of this user's own. ``connection_file`` is this process's, if it is a
    kernel.
    """
    table = cuda_devices.devices(processes=processes, arguments=arguments)
    if not table:
        return table
    found: list[Claim] = []
    try:
        found = claims.all_claims()
    except TooManyFilesError as error:
        table = replace(table, notes=(*table.notes, f"claims are not shown: {error}"))
    except ClaimError:  # there is no registry here
        pass
    table, found = notebooks.with_notebooks(table, found, connection_file)
    return replace(table, devices=claims.with_claims(table, found))
