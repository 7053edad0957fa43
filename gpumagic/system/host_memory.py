"""How much more host memory this process can use: the machine's, and its control group's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpumagic.system import system_files

#: A limit of version 1 above this is none.
_NO_LIMIT = 1 << 60


def available() -> int:
    """Return the bytes that can be allocated without swapping, by the machine and every group."""
    import psutil

    return min([int(psutil.virtual_memory().available), *_by_groups()])


def _by_groups() -> Iterator[int]:
    """Yield what each control group of this process with a limit has left."""
    root = system_files.at("/sys/fs/cgroup")
    for line in (system_files.read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mount):
                break
            left = _left(folder, *names)
            if left is not None:
                yield left


def _left(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    """Return what a group has left: its limit without its usage, but for cached files."""
    try:
        most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
        statistics = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such group, or "max"
        return None
    if most >= _NO_LIMIT:
        return None
    cached = [int(line.split()[1]) for line in statistics if line.startswith(f"{cache} ")]
    return max(most - used + sum(cached), 0)
