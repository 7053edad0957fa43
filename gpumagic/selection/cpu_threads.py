"""The number of CPU threads that torch uses, and the cores that this process may use."""

from __future__ import annotations

import math
import os
import sys
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
    #: CPU time per time that the control group allows (``--cpus``); None without a limit.
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
    """Return the lowest limit of this process's control groups in cores; None without a limit.

    By ``cpu.max`` (version 2) or ``cpu.cfs_quota_us`` (version 1): Linux's admin-guide/cgroup-v2
    and scheduler/sched-bwc.
    """
    limits = [
        _version_1(folder) if version == 1 else _version_2(folder)
        for version, folder in system_files.control_groups("cpu")
    ]
    return min((limit for limit in limits if limit is not None), default=None)


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
    """Return the number of CPU threads that torch uses; None where torch is not loaded."""
    torch = torch_cuda.loaded()
    return None if torch is None else int(torch.get_num_threads())


def use(count: int) -> int:
    """Set the number of torch's CPU threads, and return the number that torch then reports.

    Imports torch.

    Raises:
        DeviceError: torch cannot be imported.
    """
    torch, choice = torch_cuda.require(), STATE.choice
    before = int(torch.get_num_threads()) if choice.threads is None else choice.threads.before
    torch.set_num_threads(count)
    choice.threads = ThreadCount(before, int(torch.get_num_threads()))
    return choice.threads.current


def is_ours() -> bool:
    """Return whether the current number of threads is that of the last `use`."""
    chosen = STATE.choice.threads
    return chosen is not None and number() == chosen.current


def reset() -> bool:
    """Restore the number of threads before the first `use`; return whether there was one."""
    torch, chosen = torch_cuda.loaded(), STATE.choice.threads
    if chosen is None or torch is None:
        return False
    torch.set_num_threads(chosen.before)
    STATE.choice.threads = None
    return True


def undo() -> None:
    """Undo `use`, unless the user has set another number since."""
    if is_ours():
        reset()
    STATE.choice.threads = None


def with_threads(chosen: Selection, spec: Spec, count: int | None) -> Selection:
    """Set ``count`` CPU threads, if given, and return the selection with a note on the threads.

    Without ``count``, `%gpu off` only adds the note, `%gpu on` and `reset` undo an earlier one.
    """
    if count is not None:
        try:
            got = use(count)
        except DeviceError as error:
            return replace(chosen, notes=(*chosen.notes, f"the CPU threads are not set: {error}"))
        if got != count:
            text = f"{count} CPU threads were requested, torch reports {got}"
            return replace(chosen, notes=(*chosen.notes, text))
    elif spec.kind in ("on", "reset"):
        if not reset():
            return chosen
    elif spec.kind != "off" or chosen.status == "too-late":
        return chosen
    return replace(chosen, notes=(*chosen.notes, note()))


def note() -> str:
    """Return one line on threads and cores, for computations on the CPU."""
    found, threads = cores(), number()
    if threads is None:
        return f"CPU: {found}; torch is not loaded yet. Set its threads with --threads N"
    text = f"CPU: torch computes with {plural(threads, 'thread')}, {found}"
    if threads == found.allowed:
        return text
    return f"{text}. To use what is allowed: --threads {found.allowed}"
