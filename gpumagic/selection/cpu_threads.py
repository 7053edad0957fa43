"""The number of CPU threads that torch uses, and the cores that this process may use."""

from __future__ import annotations

import itertools
import math
import os
from contextlib import suppress
from dataclasses import replace

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE, ThreadCount
from gpumagic.errors import DeviceError
from gpumagic.results.selection import Selection
from gpumagic.selection.spec import Spec
from gpumagic.system import system_files
from gpumagic.wording import plural

#: The files of a control group's limit and its period, in version 2 and in version 1.
_QUOTA_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def cores() -> tuple[int, int]:
    """Return the machine's CPU cores, and how many threads of this process can run at once.

    The scheduler may put it on some of them alone (``taskset``, ``--cpuset-cpus``), and its control
    group may limit its time (``--cpus``).
    """
    machine, limit = os.cpu_count() or 1, quota()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    return machine, allowed if limit is None else min(allowed, math.ceil(limit))


def quota() -> float | None:
    """Return the lowest limit of this process's control groups in cores; None without a limit.

    By Linux's admin-guide/cgroup-v2 and, of version 1, scheduler/sched-bwc.
    """
    limits = []
    for folder, names in itertools.product(system_files.control_groups("cpu"), _QUOTA_FILES):
        with suppress(OSError, ValueError):  # of the other version, or without a limit
            limit, period = " ".join((folder / name).read_text() for name in names).split()
            if int(limit) > 0:
                limits.append(int(limit) / int(period))
    return min(limits, default=None)


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


def undo() -> bool:
    """Undo `use`, unless the user has set another number since; return whether that was done."""
    chosen, STATE.choice.threads = STATE.choice.threads, None
    torch = torch_cuda.loaded()
    if chosen is None or torch is None or torch.get_num_threads() != chosen.current:
        return False
    torch.set_num_threads(chosen.before)
    return True


def with_threads(chosen: Selection, spec: Spec, count: int | None) -> Selection:
    """Set ``count`` CPU threads, if given, and return the selection with a note on the threads.

    Without ``count``, `%gpu off` only adds the note, `%gpu on` and `reset` undo an earlier one.
    """
    text = None
    if count is not None:
        try:
            use(count)
        except DeviceError as error:
            text = f"the CPU threads are not set: {error}"
    elif spec.kind in ("on", "reset"):
        if not undo():
            return chosen
    elif spec.kind != "off" or chosen.status == "too-late":
        return chosen
    return replace(chosen, notes=(*chosen.notes, text or note()))


def note() -> str:
    """Return one line on threads and cores, for computations on the CPU."""
    (machine, allowed), threads = cores(), torch_cuda.cpu_threads()
    found = plural(machine, "core") if allowed >= machine else f"{allowed} of {machine:,} cores"
    if threads is None:
        return f"CPU: {found} allowed; torch is not loaded yet. Set its threads with --threads N"
    text = f"CPU: torch computes with {plural(threads, 'thread')}, {found} allowed"
    return text if threads == allowed else f"{text}. To use what is allowed: --threads {allowed}"
