"""The names of the notebooks of this user's kernels.

Jupyter puts the notebook's path into a kernel's environment when it starts the kernel: a later
rename shows only after a restart. Of other users' processes nothing is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpumagic.results.devices import Device, Process
from gpumagic.system.text import harmless

_LONGEST = 200


def name_of(pid: int) -> str | None:
    """Return the path of the notebook of a process; None if it is no kernel, or not known."""
    import psutil

    try:
        path = psutil.Process(pid).environ().get("JPY_SESSION_NAME", "")
    except (psutil.Error, OSError):
        return None
    # JupyterLab may write an identifier instead.
    return harmless(path, _LONGEST) if path.endswith(".ipynb") else None


def with_notebooks(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return the devices, with the notebooks of the user's own processes on them."""
    devices = tuple(devices)
    pids = {p.pid for device in devices for p in device.processes or () if p.mine or p.own}
    pids |= {c.pid for device in devices for c in device.claims if c.mine and c.pid is not None}
    paths = {pid: path for pid in pids if (path := name_of(pid)) is not None}
    names = _short(paths)
    return tuple(_named(device, names) for device in devices)


def _short(paths: Mapping[int, str]) -> dict[int, str]:
    """Return the file names; where several notebooks have the same one, the paths."""
    names = {path: path.rpartition("/")[2] for path in paths.values()}
    count = Counter(names.values())
    return {pid: names[p] if count[names[p]] == 1 else p for pid, p in paths.items()}


def _named(device: Device, names: Mapping[int, str]) -> Device:
    def named(each: Process) -> Process:
        known = each.mine or each.own
        return replace(each, notebook=names.get(each.pid)) if known else each

    processes = device.processes and tuple(map(named, device.processes))
    claims = [replace(c, notebook=names.get(c.pid or 0)) for c in device.claims]
    return replace(device, processes=processes, claims=tuple(claims))
