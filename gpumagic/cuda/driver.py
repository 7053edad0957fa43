"""Query the state of the CUDA driver in this process by ctypes, without changing it.

The driver reads ``CUDA_VISIBLE_DEVICES`` once, in ``cuInit``; from then on what this process sees
is fixed. ``torch.cuda.is_initialized()`` is only torch's own flag and stays False after, for
example, ``torch.cuda.is_available()``. So the driver itself is queried: before ``cuInit``, which
any library may call, every function returns ``CUDA_ERROR_NOT_INITIALIZED``.
"""

from __future__ import annotations

import ctypes
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpumagic.cuda.process_state import STATE

#: The library of the CUDA driver.
LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
#: Codes of ``CUresult``.
SUCCESS, NOT_INITIALIZED, NO_DEVICE = 0, 3, 100
#: The message where there are devices, but the driver's library cannot be loaded.
MISSING = (
    f"CUDA's own driver library, {LIBRARY}, cannot be loaded; start a container with --gpus all "
    "and NVIDIA_DRIVER_CAPABILITIES=compute,utility, elsewhere install the NVIDIA driver"
)


@dataclass(frozen=True)
class DriverState:
    """The state of the CUDA driver in this process."""

    #: Whether the driver's library is loaded (torch loads it on import, without initialising it).
    loaded: bool
    #: Whether any library has initialised it; None where it returns an unknown code.
    initialized: bool | None
    #: UUIDs of the visible devices in CUDA's order (``GPU-…``; for a MIG instance its own,
    #: ``MIG-…``); None where the driver is not initialised or does not report them.
    uuids: tuple[str, ...] | None = None
    #: The ordinals with a primary context.
    contexts: tuple[int, ...] = ()
    #: Whether CUDA's runtime has failed to initialise in this process, which then sees no device
    #: (`gpumagic.cuda.failure`).
    failed: bool = False


#: A cache: the library, once it was found loaded.
_library: ctypes.CDLL | None = None


def loaded_library() -> ctypes.CDLL | None:
    """Return the driver's library if this process has loaded it; never loads it."""
    global _library
    if _library is None:
        if os.name == "nt":
            ask = ctypes.WinDLL("kernel32").GetModuleHandleW  # type: ignore[attr-defined]
            ask.restype, ask.argtypes = ctypes.c_void_p, [ctypes.c_wchar_p]  # a handle has 64 bits
            handle = ask(LIBRARY)
            if not handle:
                return None
            _library = ctypes.CDLL(LIBRARY, handle=handle)
        elif hasattr(os, "RTLD_NOLOAD"):
            try:
                _library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError:
                return None
    return _library


def installed() -> bool:
    """Return whether the CUDA driver's library can be loaded. Initialises nothing.

    Loads the library if it is not loaded yet, as the import of torch does.
    """
    if loaded_library() is not None:
        return True
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def cuda_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver supports, as major and minor number.

    None without a driver. Initialises nothing: ``cuDriverGetVersion`` needs no ``cuInit``.
    """
    version = ctypes.c_int()
    if not installed():
        return None
    library = loaded_library() or ctypes.CDLL(LIBRARY)
    if library.cuDriverGetVersion(ctypes.byref(version)) != SUCCESS:
        return None
    return version.value // 1000, version.value % 1000 // 10


def is_initialized() -> bool:
    """Return whether the driver is initialised in this process; cheaper than `state`.

    False also where the driver returns an unknown code, which `state` distinguishes.
    """
    library = loaded_library()
    if library is None:
        return False
    return library.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) in (SUCCESS, NO_DEVICE)


def state() -> DriverState:
    """Return the driver's state. Loads and initialises nothing, creates no context."""
    library = loaded_library()
    if library is None:
        return DriverState(loaded=False, initialized=False)
    count = ctypes.c_int()
    code = library.cuDeviceGetCount(ctypes.byref(count))
    if code == NOT_INITIALIZED:
        return DriverState(loaded=True, initialized=False, failed=STATE.init_failure.failed)
    if code == NO_DEVICE:
        return DriverState(loaded=True, initialized=True, uuids=())
    if code != SUCCESS:
        return DriverState(loaded=True, initialized=None)
    handles = [*_handles(library, count.value)]
    uuids = tuple(found for handle in handles if (found := uuid_of(library, handle)) is not None)
    return DriverState(
        loaded=True,
        initialized=True,
        uuids=uuids if len(uuids) == count.value else None,
        contexts=tuple(i for i, handle in enumerate(handles) if _has_context(library, handle)),
    )


def _handles(library: ctypes.CDLL, count: int) -> Iterator[ctypes.c_int]:
    for ordinal in range(count):
        handle = ctypes.c_int()
        if library.cuDeviceGet(ctypes.byref(handle), ordinal) == SUCCESS:
            yield handle


def _has_context(library: ctypes.CDLL, handle: ctypes.c_int) -> bool:
    flags, active = ctypes.c_uint(), ctypes.c_int()
    code = library.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(active))
    return code == SUCCESS and bool(active.value)


def c_environment(name: str) -> str | None:
    """Return an environment variable as C code, such as the driver, reads it.

    `os.environ` may differ where the user has replaced it.
    """
    if os.name == "nt":
        return os.environ.get(name)
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    getenv.argtypes = [ctypes.c_char_p]
    value: bytes | None = getenv(name.encode())
    return None if value is None else os.fsdecode(value)


# --- the devices, listed in a child process, in which the driver is initialised ------------------


@cache
def list_in_child(timeout: float = 20.0) -> tuple[dict[str, Any], ...]:
    """Return every device of the machine as the driver lists them, in PCI order; fields of results.

    For machines without a working NVML; slow at the first call. Empty where the driver does not
    start. This process's driver is not initialised.
    """
    import inspect

    from gpumagic.system import child_process

    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    functions: tuple[Any, ...] = (uuid_of, describe, main)
    program = ["from __future__ import annotations", "import ctypes, json, uuid", "SUCCESS = 0"]
    program += [*map(inspect.getsource, functions), f"main({LIBRARY!r})"]
    try:
        done = child_process.python(
            "\n".join(program), "-I", "-S", environment=environment, timeout=timeout
        )
    except (OSError, child_process.ChildTimeoutError):
        return ()
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    capability = "compute_capability"
    return tuple({**fields, capability: tuple(fields[capability])} for fields in found)


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


def describe(library: Any, index: int) -> dict[str, Any]:
    """Return UUID, name, total memory and compute capability of a device, as plain data."""
    handle, name, total = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    version = ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(handle), index)
    library.cuDeviceGetName(name, 256, handle)
    library.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    for attribute, part in zip((75, 76), version, strict=True):  # …COMPUTE_CAPABILITY_MAJOR, _MINOR
        library.cuDeviceGetAttribute(ctypes.byref(part), attribute, handle)
    return {
        "index": index,
        "uuid": uuid_of(library, handle),
        "name": name.value.decode(errors="replace"),
        "memory_total": total.value,
        "compute_capability": [part.value for part in version],
    }


def main(name: str) -> None:
    """Initialise the driver, and print the devices: in the child."""
    library, count = ctypes.CDLL(name), ctypes.c_int()
    if library.cuInit(0) == SUCCESS == library.cuDeviceGetCount(ctypes.byref(count)):
        for index in range(count.value):
            print(json.dumps(describe(library, index)))
