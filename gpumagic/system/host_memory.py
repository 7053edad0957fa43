"""The memory of the host that this process can still take."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from gpumagic.system import system_files

#: By version of the control groups: the files of the limit and of what is used, and the entry of
#: ``memory.stat`` that has the part of it which the kernel gives back first.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available() -> int:
    """Return the bytes: of the machine, or less where a control group limits this process."""
    found = [psutil.virtual_memory().available]
    for group in system_files.control_groups("memory"):
        for limit, used, inactive in _FILES:
            most, now = _number(group / limit), _number(group / used)
            if most is not None and now is not None:
                found.append(most - now + (_number(group / "memory.stat", f"{inactive} ") or 0))
    return max(0, min(found))


def is_memory(folder: str) -> bool:
    """Return whether the files of a folder are in memory; False where no mount is listed."""
    mounts = psutil.disk_partitions(all=True)
    within = [each for each in mounts if Path(folder).resolve().is_relative_to(each.mountpoint)]
    # Of two mounts in the same place the later one is seen.
    mount = max(reversed(within), key=lambda each: len(each.mountpoint), default=None)
    return mount is not None and mount.fstype in ("tmpfs", "ramfs")


def _number(file: Path, before: str = "") -> int | None:
    """Return the number behind some text at the beginning of a line; None if there is none."""
    try:
        match = re.search(rf"^{before}(\d+)$", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else int(match[1])
