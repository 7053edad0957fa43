"""The GPUs that the kernel module lists in ``/proc``: reading them starts no driver."""

from __future__ import annotations

import re

from gpumagic.system import system_files

_FOLDER = "/proc/driver/nvidia/gpus"
#: A GPU that was not used since the machine started has question marks instead.
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", re.MULTILINE)


def listed_devices() -> tuple[tuple[int, str | None], ...]:
    """Return index and UUID of the GPUs in ``/proc``; none where there is no such list.

    NVML counts by bus address, which the folders are named after. Unknown UUIDs are None.
    """
    try:
        addresses = sorted(folder.name for folder in system_files.at(_FOLDER).iterdir())
    except OSError:
        return ()
    found = (
        _UUID.search(system_files.read(f"{_FOLDER}/{each}/information") or "") for each in addresses
    )
    return tuple((index, uuid[1] if uuid else None) for index, uuid in enumerate(found))
