"""How much more host memory this process can use: the machine's, and its control group's."""

from __future__ import annotations

from pathlib import Path

from gpumagic.system import system_files

#: A limit of version 1 above this is none.
_NO_LIMIT = 1 << 60
#: The files of limit and usage, and the field of ``memory.stat`` for cached files, by version.
_NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def available() -> int:
    """Return the bytes that this process can allocate without swapping."""
    import psutil

    groups = (
        _unused(folder, *_NAMES[number]) for number, folder in system_files.control_groups("memory")
    )
    unused = [size for size in groups if size is not None]
    return min([int(psutil.virtual_memory().available), *unused])


def _unused(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    """Return a group's limit less its usage without cached files; None without a limit."""
    try:
        most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
        statistics = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such group, or "max"
        return None
    if most >= _NO_LIMIT:
        return None
    cached = [int(line.split()[1]) for line in statistics if line.startswith(f"{cache} ")]
    return max(most - used + sum(cached), 0)
