"""The table of ``%gpu`` and `gpumagic.devices`: the GPUs, what this process sees, the claims."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from gpumagic.cuda import device_table
from gpumagic.results.claims import Claim
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.selection import claims


def devices(*, processes: bool = True) -> DeviceTable:
    """Return the GPUs of this machine, which of them this process sees, and the claims on them.

    Does not initialise CUDA and imports no torch. Where NVML does not start, as without a driver,
    the table is empty and its ``error`` says why.

    ``processes`` also looks up each process's user, command and notebook.

    Examples:
        >>> gpus = gpumagic.devices()
        >>> [(gpu.index, gpu.ordinal) for gpu in gpus]
        [(0, 0), (1, 1), (2, 2), (3, 3)]

    .. versionadded:: 0.1.0
    """
    locked = claims.locked
    with ThreadPoolExecutor(1) as beside:  # the one waits for NVML, the other for the kernel
        with suppress(RuntimeError):  # no thread starts while the interpreter ends
            locked = beside.submit(locked).result
        table = device_table.read(commands=processes, usage=True)
    uuids = (uuid for device in table for uuid in claims.all_uuids(device))
    found = claims.all_of(uuids, locked())
    claimed = (replace(device, claims=_claims_on(device, found)) for device in table)
    return replace(table, devices=tuple(claimed))


def _claims_on(device: Device, found: claims.Others) -> tuple[Claim, ...]:
    """Return the claims on a device and on its MIG instances."""
    return tuple(
        replace(claim, instance=None if uuid == device.uuid else uuid)
        for uuid in claims.all_uuids(device)
        for claim in found[uuid]
    )
