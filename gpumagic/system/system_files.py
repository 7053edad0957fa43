"""Read the files that describe the machine on Linux: ``/dev``, ``/proc``, ``/sys``, ``/usr``.

They are below ``/``, or below the folder in ``GPUMAGIC_ROOT``: the host's files mounted in a
container, or the files of a test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = "GPUMAGIC_ROOT"
#: The GPUs that NVIDIA's kernel module lists.
_GPUS = "/proc/driver/nvidia/gpus"
#: A GPU that was not used since the machine started has question marks instead.
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", re.MULTILINE)


def at(path: str) -> Path:
    """Return the location of the absolute ``path``."""
    return Path(os.environ.get(ROOT, "") + path)


def read(path: str) -> str | None:
    """Return the text of a file; None if it does not exist or may not be read."""
    try:
        return at(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def listed_devices() -> dict[str, Path]:
    """Return the file that describes each GPU in ``/proc``, by UUID as far as that is known.

    Starts no driver. Empty where there is no such list.
    """
    found = {}
    with suppress(OSError):
        for folder in at(_GPUS).iterdir():
            uuid = _UUID.search(read(f"{_GPUS}/{folder.name}/information") or "")
            if uuid is not None:
                found[uuid[1]] = folder / "information"
    return found


def control_groups(controller: str) -> Iterator[Path]:
    """Yield the folder of each control group that limits this process, up to the root.

    ``controller`` is, for example, ``cpu``. A container sees its own group as the root.
    """
    root = at("/sys/fs/cgroup")
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers or controller in controllers.split(","):  # version 2 names none
            mount = root / controllers
            folder = mount / group.lstrip("/")
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(mount))
