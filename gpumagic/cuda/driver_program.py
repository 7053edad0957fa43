"""List the devices that the CUDA driver shows; a program that runs in a child process.

There it initialises the driver, which stays uninitialised in this process
(`gpumagic.cuda.driver.list_in_child`). Imports only the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import uuid
from typing import Any

#: The library of the CUDA driver.
LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
#: Codes of ``CUresult``.
SUCCESS, NOT_INITIALIZED, NO_DEVICE = 0, 3, 100
#: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_MAJOR, _MINOR = 75, 76


def uuid_of(library: Any, handle: ctypes.c_int) -> str | None:
    """Return a device's UUID, of a MIG instance its own (``MIG-…``); None if not reported."""
    ask_device = library.cuDeviceGetUuid
    # Version 2 (CUDA 11.4) gives a MIG instance its own UUID, the first its device's.
    ask = getattr(library, "cuDeviceGetUuid_v2", None) or ask_device
    raw, of_device = (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
    if ask(ctypes.byref(raw), handle) != SUCCESS:
        return None
    whole = ask_device(ctypes.byref(of_device), handle) != SUCCESS or raw[:] == of_device[:]
    return f"{'GPU' if whole else 'MIG'}-{uuid.UUID(bytes=bytes(raw))}"


def describe(library: Any, ordinal: int) -> dict[str, Any]:
    """Return UUID, name, total memory and compute capability of a device, as plain data."""
    handle, name, total = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(handle), ordinal)
    library.cuDeviceGetName(name, 256, handle)
    library.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    library.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle)
    library.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle)
    return {
        "uuid": uuid_of(library, handle),
        "name": name.value.decode(errors="replace"),
        "memory_total": total.value,
        "compute_capability": (major.value, minor.value),
    }


def main() -> None:
    """Print a line of JSON: the devices, or the error."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        print(json.dumps({"error": str(error)}))
        return
    code = library.cuInit(0)
    count = ctypes.c_int()
    if code == SUCCESS:
        code = library.cuDeviceGetCount(ctypes.byref(count))
    if code not in (SUCCESS, NO_DEVICE):
        print(json.dumps({"error": f"cuInit returned {code}"}))
        return
    print(json.dumps({"devices": [describe(library, each) for each in range(count.value)]}))


if __name__ == "__main__":
    main()
