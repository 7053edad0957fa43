"""Query the state of the CUDA driver in this process by ctypes, without changing it.

The driver reads ``CUDA_VISIBLE_DEVICES`` once, in ``cuInit``; from then on what this process sees
is fixed. ``torch.cuda.is_initialized()`` is only torch's own flag and stays False after, for
example, ``torch.cuda.is_available()``. So the driver itself is queried: before ``cuInit``, which
any library may call, every function returns ``CUDA_ERROR_NOT_INITIALIZED``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass

from gpumagic.cuda.driver_program import LIBRARY, NO_DEVICE, NOT_INITIALIZED, SUCCESS, uuid_of
from gpumagic.cuda.process_state import STATE

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
    handles = _handles(library, count.value)
    return DriverState(
        loaded=True,
        initialized=True,
        uuids=None if handles is None else _uuids(library, handles),
        contexts=() if handles is None else _contexts(library, handles),
    )


def _handles(library: ctypes.CDLL, count: int) -> list[ctypes.c_int] | None:
    handles = []
    for ordinal in range(count):
        handle = ctypes.c_int()
        if library.cuDeviceGet(ctypes.byref(handle), ordinal) != SUCCESS:
            return None
        handles.append(handle)
    return handles


def _uuids(library: ctypes.CDLL, handles: list[ctypes.c_int]) -> tuple[str, ...] | None:
    """Return the devices' UUIDs; None if the driver does not report one of them."""
    uuids = [uuid_of(library, handle) for handle in handles]
    known = [uuid for uuid in uuids if uuid is not None]
    return tuple(known) if len(known) == len(uuids) else None


def _contexts(library: ctypes.CDLL, handles: list[ctypes.c_int]) -> tuple[int, ...]:
    found = []
    for ordinal, handle in enumerate(handles):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        asked = library.cuDevicePrimaryCtxGetState(
            handle, ctypes.byref(flags), ctypes.byref(active)
        )
        if asked == SUCCESS and active.value:
            found.append(ordinal)
    return tuple(found)


@dataclass(frozen=True)
class ListedDevice:
    """A device as the CUDA driver lists it."""

    #: None where the driver does not report it.
    uuid: str | None
    name: str
    memory_total: int
    compute_capability: tuple[int, int]


#: Variables with which the driver shows every device, in PCI order.
_EVERYTHING: Mapping[str, str | None] = {
    "CUDA_VISIBLE_DEVICES": None,
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}


def list_in_child(
    variables: Mapping[str, str | None] = _EVERYTHING, timeout: float = 20.0
) -> tuple[ListedDevice, ...]:
    """Return the devices that the CUDA driver lists in a child process, in its order.

    By default every device of the machine in PCI order. For machines without a working NVML, and
    where only the driver knows its order. This process's driver is not initialised.

    Raises:
        DeviceError: there is no driver, or it does not start within ``timeout`` seconds.
    """
    import inspect
    import json

    from gpumagic.cuda import driver_program
    from gpumagic.errors import DeviceError
    from gpumagic.system import child_process

    changed = {**os.environ, **variables}
    environment = {name: value for name, value in changed.items() if value is not None}
    source = inspect.getsource(driver_program)
    try:
        done = child_process.python(source, "-I", "-S", environment=environment, timeout=timeout)
    except (OSError, child_process.ChildTimeoutError) as error:
        raise DeviceError(f"the CUDA driver could not be queried: {error}") from error
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    output = found[-1] if found else {}
    if "devices" not in output:
        reason = output.get("error") or child_process.last_error(done.stderr) or "no reason given"
        raise DeviceError(f"no CUDA driver: {reason}")
    return tuple(
        ListedDevice(**{**each, "compute_capability": tuple(each["compute_capability"])})
        for each in output["devices"]
    )


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
