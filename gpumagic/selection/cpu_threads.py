"""The CPU threads that torch computes with, and the cores that this process may use."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.process_state import STATE, ThreadCount
from gpumagic.errors import DeviceError
from gpumagic.results import Selection
from gpumagic.selection.spec import Spec
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
        """The number of threads that can run at the same time."""
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
    """Return the cores that this process may use."""
    machine = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    return Cores(machine, affinity, quota() if sys.platform.startswith("linux") else None)


def quota() -> float | None:
    """Return the control group's limit in cores, the lowest from this process's group to the root.

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
    """Return how many CPU threads torch computes with; None where torch is not loaded."""
    torch = torch_cuda.loaded()
    return None if torch is None else int(torch.get_num_threads())


def use(count: int) -> int:
    """Make torch compute with ``count`` CPU threads; imports torch. Returns how many it now says.

    Raises:
        DeviceError: torch cannot be imported.
    """
    torch, choice = torch_cuda.require(), STATE.choice
    before = int(torch.get_num_threads()) if choice.threads is None else choice.threads.before
    torch.set_num_threads(count)
    choice.threads = ThreadCount(before, int(torch.get_num_threads()))
    return choice.threads.current


def is_ours() -> bool:
    """Return whether the number of threads is that of the last `use`."""
    chosen = STATE.choice.threads
    return chosen is not None and number() == chosen.current


def reset() -> bool:
    """Set the number of threads before the first `use`; return whether there was one."""
    torch, chosen = torch_cuda.loaded(), STATE.choice.threads
    if chosen is None or torch is None:
        return False
    torch.set_num_threads(chosen.before)
    STATE.choice.threads = None
    return True


def take_back() -> None:
    """Undo `use`, unless the user has set another number since."""
    if is_ours():
        reset()
    STATE.choice.threads = None


def with_threads(chosen: Selection, spec: Spec, count: int | None) -> Selection:
    """Set ``count`` CPU threads, if given, and return the selection with a note on the threads.

    Without ``count``: `%gpu off` tells the number, `%gpu on` and `reset` undo an earlier ``count``.
    """
    if count is not None:
        try:
            got = use(count)
        except DeviceError as error:
            return replace(chosen, notes=(*chosen.notes, f"the CPU threads are not set: {error}"))
        if got != count:
            text = f"{count} CPU threads were asked for, torch says {got}"
            return replace(chosen, notes=(*chosen.notes, text))
    elif spec.kind in ("on", "reset"):
        if not reset():
            return chosen
    elif spec.kind != "off" or chosen.status == "too-late":
        return chosen
    return replace(chosen, notes=(*chosen.notes, note()))


def note() -> str:
    """Return one line on threads and cores, for when the CPU computes."""
    found, threads = cores(), number()
    if threads is None:
        return f"CPU: {found}; torch is not loaded yet. Set its threads with --threads N"
    text = f"CPU: torch computes with {plural(threads, 'thread')}, {found}"
    if threads == found.allowed:
        return text
    return f"{text}. To use what is allowed: --threads {found.allowed}"
