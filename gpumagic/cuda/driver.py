"""Query the state of the CUDA driver in this process by ctypes, without changing it.

The driver reads ``CUDA_VISIBLE_DEVICES`` once, in ``cuInit``; from then on what this process sees
is fixed. ``torch.cuda.is_initialized()`` is only torch's own flag and stays False after, for
example, ``torch.cuda.is_available()``. So the driver itself is queried: before ``cuInit``, which
any library may call, every function returns ``CUDA_ERROR_NOT_INITIALIZED``.
"""

from __future__ import annotations

import ctypes
import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpumagic.cuda.this_process import STATE
from gpumagic.system import system_files

#: The library of the CUDA driver.
LIBRARY = "libcuda.so.1"
#: Codes of ``CUresult``.
SUCCESS, NOT_INITIALIZED, NO_DEVICE = 0, 3, 100
#: The message where there are devices, but the driver's library cannot be loaded.
MISSING = (
    f"CUDA's own driver library, {LIBRARY}, cannot be loaded; start a container with --gpus all "
    "and NVIDIA_DRIVER_CAPABILITIES=compute,utility, elsewhere install the NVIDIA driver; on "
    "Windows work in WSL 2"
)

_VERSION = re.compile(r"\d{3,}(?:\.\d+)+")


@dataclass(frozen=True)
class DriverState:
    """The state of the CUDA driver in this process."""

    #: Whether any library has initialised it; None where it returns an unknown code.
    initialized: bool | None
    #: UUIDs of the visible devices in CUDA's order (``GPU-…``; for a MIG instance its own,
    #: ``MIG-…``); None where the driver is not initialised or does not report them.
    uuids: tuple[str, ...] | None = None
    #: The ordinals with a primary context.
    contexts: tuple[int, ...] = ()
    #: Whether CUDA's runtime has failed to initialise in this process, which then sees no device
    #: (`gpumagic.cuda.init_failure`).
    failed: bool = False


#: A cache: the library, once it was found loaded.
_library: ctypes.CDLL | None = None


def loaded_library() -> ctypes.CDLL | None:
    """Return the driver's library if this process has loaded it; never loads it."""
    global _library
    if _library is None and hasattr(os, "RTLD_NOLOAD"):  # not on Windows
        with suppress(OSError):
            _library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    return _library


def _load() -> ctypes.CDLL | None:
    """Return the driver's library; load it if need be, as the import of torch does."""
    try:
        return loaded_library() or ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def installed() -> bool:
    """Return whether the CUDA driver's library can be loaded. Initialises nothing."""
    return _load() is not None


def cuda_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver supports, as major and minor number.

    None without a driver. Initialises nothing: ``cuDriverGetVersion`` needs no ``cuInit``.
    """
    library, version = _load(), ctypes.c_int()
    if library is None or library.cuDriverGetVersion(ctypes.byref(version)) != SUCCESS:
        return None
    return version.value // 1000, version.value % 1000 // 10


def kernel_module() -> str | None:
    """Return the version of the NVIDIA driver's kernel module; None if it is not loaded."""
    text = system_files.read("/proc/driver/nvidia/version") or ""
    match = _VERSION.search(text.partition("\n")[0])
    return match[0] if match else None


def is_initialized() -> bool:
    """Return whether the driver is initialised in this process; cheaper than `state`.

    False also where the driver returns an unknown code, which `state` distinguishes.
    """
    return _count()[0] in (SUCCESS, NO_DEVICE)


def _count() -> tuple[int, int]:
    """Return the driver's code for the number of devices, and the number.

    A library that this process has not loaded (torch loads it on import) is not initialised.
    """
    library, number = loaded_library(), ctypes.c_int()
    code = library.cuDeviceGetCount(ctypes.byref(number)) if library else NOT_INITIALIZED
    return code, number.value


def start() -> tuple[tuple[str, ...], str | None]:
    """Start the driver in this process, a child of ours; return the UUIDs that it shows.

    Where it does not start, its message too.
    """
    library, text = ctypes.CDLL(LIBRARY), ctypes.c_char_p()
    code = library.cuInit(0)
    library.cuGetErrorString(code, ctypes.byref(text))
    said = f"Error {code}: {(text.value or b'').decode()}" if code != 999 else "CUDA unknown error"
    return state().uuids or (), None if code in (SUCCESS, NO_DEVICE) else said


def state() -> DriverState:
    """Return the driver's state. Loads and initialises nothing, creates no context."""
    code, count = _count()
    if code == NOT_INITIALIZED:
        return DriverState(initialized=False, failed=STATE.init_failure.failed)
    if code not in (SUCCESS, NO_DEVICE):
        return DriverState(initialized=None)
    found = [_device(loaded_library(), ordinal) for ordinal in range(count)]
    uuids = tuple(each for each, _ in found if each is not None)
    return DriverState(
        initialized=True,
        uuids=uuids if len(uuids) == len(found) else None,
        contexts=tuple(ordinal for ordinal, (_, has_context) in enumerate(found) if has_context),
    )


def _device(library: Any, ordinal: int) -> tuple[str | None, bool]:
    """Return a device's UUID, None if not reported, and whether it has a primary context."""
    handle, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    raw, of_device = (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
    if library.cuDeviceGet(ctypes.byref(handle), ordinal) != SUCCESS:
        return None, False
    library.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(active))
    ask_device = library.cuDeviceGetUuid
    # Version 2 (CUDA 11.4) gives a MIG instance its own UUID, the first its device's.
    ask = getattr(library, "cuDeviceGetUuid_v2", None) or ask_device
    if ask(ctypes.byref(raw), handle) != SUCCESS:
        return None, bool(active.value)
    whole = ask_device(ctypes.byref(of_device), handle) != SUCCESS or raw[:] == of_device[:]
    return f"{'GPU' if whole else 'MIG'}-{uuid.UUID(bytes=bytes(raw))}", bool(active.value)
