"""The control groups of this process (Linux, versions 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpumagic.system import system_files


def folders(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of each control group that limits this process, up to the root.

    ``controller`` is ``cpu`` or ``memory``. A container sees its own group as the root.
    """
    root = system_files.at("/sys/fs/cgroup")
    for line in (system_files.read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, mounts = 2, {root}
        elif controller in controllers.split(","):
            version, mounts = 1, {root / controller, root / controllers}
        else:
            continue
        for mount in mounts:
            group = mount / path.lstrip("/")
            for folder in (group, *group.parents):
                if not folder.is_relative_to(mount):
                    break
                yield version, folder
