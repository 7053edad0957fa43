"""The table of devices, with the claims on each and the notebooks that use it.

Jupyter puts the notebook's path into a kernel's environment when it starts the kernel: a later
rename shows only after a restart. Of other users' processes nothing is read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from gpumagic.cuda import devices as cuda_devices
from gpumagic.results.devices import Claim, Device, DeviceTable
from gpumagic.selection import claims
from gpumagic.system.text import harmless

#: The most characters of a notebook's name.
_LONGEST = 200


def devices(*, processes: bool = True) -> DeviceTable:
    """Return the GPUs of this machine, which of them this process sees, and the claims on them.

    Does not initialise CUDA and imports no torch. Where NVML does not start, as without a driver,
    the table is empty and its ``error`` says why.

    ``processes`` also looks up each process's user, command and notebook.
    """
    table = cuda_devices.devices(processes=processes)
    found = claims.all_of(uuid for device in table for uuid in _uuids(device))
    claimed = (replace(device, claims=_claims(device, found)) for device in table)
    return replace(table, devices=tuple(map(with_notebooks, claimed)))


def _uuids(device: Device) -> list[str]:
    return [uuid for uuid in (device.uuid, *(part.uuid for part in device.mig)) if uuid]


def _claims(device: Device, found: claims.Others) -> tuple[Claim, ...]:
    """Return the claims on a device and on its MIG instances."""
    return tuple(
        replace(claim, instance=None if uuid == device.uuid else uuid)
        for uuid in _uuids(device)
        for claim in found[uuid]
    )


def with_notebooks(device: Device) -> Device:
    """Return the device, with the notebooks of the user's own processes on it."""
    processes = device.processes and tuple(
        replace(each, notebook=notebook(each.pid)) if each.mine or each.own else each
        for each in device.processes
    )
    own = (replace(c, notebook=notebook(c.pid)) if c.mine and c.pid else c for c in device.claims)
    return replace(device, processes=processes, claims=tuple(own))


def notebook(pid: int) -> str | None:
    """Return the name of the notebook of a process; None if it is no kernel, or not known."""
    import psutil

    try:
        path = psutil.Process(pid).environ().get("JPY_SESSION_NAME", "")
    except (psutil.Error, OSError):
        return None
    # JupyterLab may write an identifier instead.
    return harmless(PurePosixPath(path).name, _LONGEST) if path.endswith(".ipynb") else None
