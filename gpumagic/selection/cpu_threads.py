"""CPU threads: how many torch computes with, and how many cores this process may use.

They matter as soon as the GPU is off.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpumagic.cuda import torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.results import Selection
from gpumagic.selection import spec
from gpumagic.system import system_files
from gpumagic.system.text import plural


@dataclass(frozen=True)
class Cores:
    """The CPU cores that this process may use."""

    #: Cores of the machine, as the system counts them.
    machine: int
    #: Cores that the scheduler may put this process on (``taskset``, ``--cpuset-cpus``).
    affinity: int
    #: Cores' worth of time that the control group allows (``--cpus``); None without a limit.
    quota: float | None = None

    @property
    def allowed(self) -> int:
        """Threads that can run at the same time."""
        return self.affinity if self.quota is None else min(self.affinity, math.ceil(self.quota))

    def __str__(self) -> str:
        number = f"{plural(self.allowed, 'core')} allowed"
        reasons = []
        if self.quota is not None and self.quota < self.affinity:
            reasons.append(f"control group: {self.quota:g}")
        if self.affinity < self.machine:
            reasons.append(f"affinity: {self.affinity}")
        if reasons:
            reasons.append(f"machine: {self.machine}")
        return f"{number} ({', '.join(reasons)})" if reasons else number


def cores() -> Cores:
    """The cores that this process may use."""
    machine = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    return Cores(machine, affinity, quota() if sys.platform.startswith("linux") else None)


def quota() -> float | None:
    """The control group's limit in cores, the tightest from this process's group to the root.

    Version 2 (``cpu.max``) and version 1 (``cpu.cfs_quota_us``); None without a limit. A container
    sees its own group as the root. Documented in Linux's admin-guide/cgroup-v2 ("cpu.max") and
    scheduler/sched-bwc.
    """
    root = system_files.at("/sys/fs/cgroup")
    lines = (system_files.read("/proc/self/cgroup") or "").splitlines()
    limits: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(root, path, _version_2)
        elif "cpu" in controllers.split(","):
            for mount in (root / "cpu", root / controllers):
                limits += _limits(mount, path, _version_1)
    return min(limits, default=None)


def _limits(mount: Path, path: str, read: Callable[[Path], float | None]) -> Iterator[float]:
    group = mount / path.lstrip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(mount):
            break
        limit = read(folder)
        if limit is not None:
            yield limit


def _version_2(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def _version_1(folder: Path) -> float | None:
    try:
        limit = int((folder / "cpu.cfs_quota_us").read_text())
        return None if limit <= 0 else limit / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def number() -> int | None:
    """How many CPU threads torch computes with; None where torch is not loaded."""
    torch = torch_cuda.loaded()
    return None if torch is None else int(torch.get_num_threads())


#: The number before the first `use`, and that after the last one.
_before: int | None = None
_ours: int | None = None


def use(count: int) -> int:
    """Make torch compute with ``count`` CPU threads; imports torch. Returns how many it now says.

    Raises:
        DeviceError: torch cannot be imported.
    """
    global _before, _ours
    torch = torch_cuda.require()
    if _before is None:
        _before = int(torch.get_num_threads())
    torch.set_num_threads(count)
    _ours = int(torch.get_num_threads())
    return _ours


def is_ours() -> bool:
    """Whether the number of threads is that of the last `use`, for `reset` to take back."""
    return _before is not None and number() == _ours


def reset() -> bool:
    """Back to the number of threads before the first `use`; whether there was one."""
    global _before
    torch = torch_cuda.loaded()
    if _before is None or torch is None:
        return False
    torch.set_num_threads(_before)
    _before = None
    return True


def take_back() -> None:
    """`reset`, unless the user has set another number since."""
    global _before
    if number() != _ours:
        _before = None
    reset()


def put_back(count: int | None) -> None:
    """The number that `number` told earlier; None for before torch was loaded."""
    if count is None:
        reset()
    else:
        use(count)


def noted(chosen: Selection, count: int | None) -> Selection:
    """A choice of devices, with ``count`` CPU threads set if asked for, and a note on them.

    Without ``count``: `%gpu off` tells the number, `%gpu on` and `reset` put back what was.
    """
    kind = spec.parse(chosen.requested).kind
    if count is not None:
        try:
            got = use(count)
        except DeviceError as error:
            return replace(chosen, notes=(*chosen.notes, f"the CPU threads are not set: {error}"))
        if got != count:
            text = f"{count} CPU threads were asked for, torch says {got}"
            return replace(chosen, notes=(*chosen.notes, text))
    elif kind in ("on", "reset"):
        if not reset():
            return chosen
    elif kind != "off" or chosen.status == "too-late":
        return chosen
    return replace(chosen, notes=(*chosen.notes, note()))


def note() -> str:
    """One line on threads and cores, for when the CPU has to do the work."""
    found, threads = cores(), number()
    if threads is None:
        return f"CPU: {found}; torch is not loaded yet. Set its threads with --threads N"
    text = f"CPU: torch computes with {plural(threads, 'thread')}, {found}"
    if threads == found.allowed:
        return text
    return f"{text}. To use what is allowed: --threads {found.allowed}"
