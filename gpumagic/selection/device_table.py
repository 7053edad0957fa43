"""The table of devices, with the claims on each."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.cuda import devices as cuda_devices
from gpumagic.results.devices import Claim, Device, DeviceTable
from gpumagic.selection import claims


def devices(*, processes: bool = True) -> DeviceTable:
    """Return the GPUs of this machine, which of them this process sees, and the claims on them.

    Does not initialise CUDA and imports no torch. Where NVML does not start, as without a driver,
    the table is empty and its ``error`` says why.

    ``processes`` also looks up each process's user, command and notebook.
    """
    table = cuda_devices.devices(processes=processes)
    found = claims.all_of(uuid for device in table for uuid in _uuids(device))
    claimed = (replace(device, claims=_claims(device, found)) for device in table)
    return replace(table, devices=tuple(claimed))


def _uuids(device: Device) -> list[str]:
    return [uuid for uuid in (device.uuid, *(part.uuid for part in device.mig)) if uuid]


def _claims(device: Device, found: claims.Others) -> tuple[Claim, ...]:
    """Return the claims on a device and on its MIG instances."""
    return tuple(
        replace(claim, instance=None if uuid == device.uuid else uuid)
        for uuid in _uuids(device)
        for claim in found[uuid]
    )
