"""The state of the CUDA driver in this process, asked by ctypes without disturbing anything.

The driver reads ``CUDA_VISIBLE_DEVICES`` once, in ``cuInit``; from then on the choice is frozen for
the life of the process. ``torch.cuda.is_initialized()`` is only torch's own flag and stays False
after, for example, ``torch.cuda.is_available()``. So the driver itself is asked: before ``cuInit``
every function answers ``CUDA_ERROR_NOT_INITIALIZED``, whichever library may call it later.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass

_LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
#: What there is to say where it cannot be loaded, though there are devices.
MISSING = (
    f"CUDA's own driver library, {_LIBRARY}, cannot be loaded; start a container with --gpus all "
    "and NVIDIA_DRIVER_CAPABILITIES=compute,utility, elsewhere install the NVIDIA driver"
)
_SUCCESS, _NOT_INITIALIZED, _NO_DEVICE = 0, 3, 100


@dataclass(frozen=True)
class DriverState:
    """What the CUDA driver says of itself in this process."""

    #: Whether the driver's library is loaded (torch loads it on import; that freezes nothing).
    loaded: bool
    #: Whether it is initialised, by whichever library; None where its answer is not understood.
    initialized: bool | None
    #: UUIDs of the visible devices in CUDA's order (``GPU-…``; for a MIG instance its own,
    #: ``MIG-…``); None where the driver is not initialised or does not say.
    uuids: tuple[str, ...] | None = None
    #: The ordinals with a primary context.
    contexts: tuple[int, ...] = ()
    #: CUDA's runtime was found to have failed in this process, and to remember that: whatever the
    #: driver could show, this process will not see it.
    failed: bool = False


#: Set by `gpumagic.cuda.init_failure`, which finds it out; the driver itself cannot be asked.
runtime_failed = False


_library: ctypes.CDLL | None = None


def loaded_library() -> ctypes.CDLL | None:
    """The driver's library if this process has loaded it; never loads it."""
    global _library
    if _library is None:
        if os.name == "nt":
            ask = ctypes.WinDLL("kernel32").GetModuleHandleW  # type: ignore[attr-defined]
            ask.restype, ask.argtypes = ctypes.c_void_p, [ctypes.c_wchar_p]  # a handle has 64 bits
            handle = ask(_LIBRARY)
            if not handle:
                return None
            _library = ctypes.CDLL(_LIBRARY, handle=handle)
        elif hasattr(os, "RTLD_NOLOAD"):
            try:
                _library = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError:
                return None
    return _library


def installed() -> bool:
    """Whether there is a CUDA driver at all: its library can be loaded. Initialises nothing.

    Loads the library if it is not loaded yet, as the import of torch does.
    """
    if loaded_library() is not None:
        return True
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the driver supports, as it says itself; initialises nothing.

    ``cuDriverGetVersion`` is documented to need no ``cuInit``.
    """
    version = ctypes.c_int()
    if not installed():
        return None
    library = loaded_library() or ctypes.CDLL(_LIBRARY)
    if library.cuDriverGetVersion(ctypes.byref(version)) != _SUCCESS:
        return None
    return version.value // 1000, version.value % 1000 // 10


def is_initialized() -> bool:
    """Whether the driver is initialised in this process; the cheapest of the questions.

    False also where it does not say: `state` tells these apart.
    """
    library = loaded_library()
    if library is None:
        return False
    return library.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) in (_SUCCESS, _NO_DEVICE)


def known_initialized() -> bool:
    """`is_initialized` without a look for the library: False until that was seen loaded."""
    return _library is not None and is_initialized()


def state() -> DriverState:
    """The state of the driver in this process. Loads and initialises nothing, makes no context."""
    library = loaded_library()
    if library is None:
        return DriverState(loaded=False, initialized=False)
    count = ctypes.c_int()
    code = library.cuDeviceGetCount(ctypes.byref(count))
    if code == _NOT_INITIALIZED:
        return DriverState(loaded=True, initialized=False, failed=runtime_failed)
    if code == _NO_DEVICE:
        return DriverState(loaded=True, initialized=True, uuids=())
    if code != _SUCCESS:
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
        if library.cuDeviceGet(ctypes.byref(handle), ordinal) != _SUCCESS:
            return None
        handles.append(handle)
    return handles


def _uuids(library: ctypes.CDLL, handles: list[ctypes.c_int]) -> tuple[str, ...] | None:
    import uuid

    # Version 2 (CUDA 11.4) gives a MIG instance its own UUID, the first its device's.
    ask_device = library.cuDeviceGetUuid
    ask = getattr(library, "cuDeviceGetUuid_v2", None) or ask_device
    found = []
    for handle in handles:
        raw, of_device = (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
        if ask(ctypes.byref(raw), handle) != _SUCCESS:
            return None
        whole = ask_device(ctypes.byref(of_device), handle) != _SUCCESS or raw[:] == of_device[:]
        found.append(f"{'GPU' if whole else 'MIG'}-{uuid.UUID(bytes=bytes(raw))}")
    return tuple(found)


def _contexts(library: ctypes.CDLL, handles: list[ctypes.c_int]) -> tuple[int, ...]:
    found = []
    for ordinal, handle in enumerate(handles):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        asked = library.cuDevicePrimaryCtxGetState(
            handle, ctypes.byref(flags), ctypes.byref(active)
        )
        if asked == _SUCCESS and active.value:
            found.append(ordinal)
    return tuple(found)


@dataclass(frozen=True)
class ListedDevice:
    """A device as the CUDA driver lists it."""

    uuid: str
    name: str
    memory_total: int
    compute_capability: tuple[int, int]


# Runs in a process of its own, so that the driver is not initialised in this one.
_LISTING = """
import ctypes, uuid
cuda = ctypes.CDLL({library!r})
code = cuda.cuInit(0)
assert code in (0, 100), f"cuInit answered {{code}}"
count = ctypes.c_int()
if code == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
second = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
for ordinal in range(count.value):
    handle, raw, own = ctypes.c_int(), (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
    name, total = ctypes.create_string_buffer(256), ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(handle), ordinal)
    cuda.cuDeviceGetUuid(ctypes.byref(raw), handle)
    second(ctypes.byref(own), handle)  # of a MIG instance its own, where the first is the GPU's
    kind = "GPU" if bytes(raw) == bytes(own) else "MIG"
    cuda.cuDeviceGetName(name, 256, handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, handle)
    print(f"{{kind}}-{{uuid.UUID(bytes=bytes(own))}}", name.value.decode(), total.value,
          major.value, minor.value, sep="\\t")
"""


#: Shows every device, in PCI order.
_EVERYTHING: Mapping[str, str | None] = {
    "CUDA_VISIBLE_DEVICES": None,
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}


def list_in_child(
    variables: Mapping[str, str | None] = _EVERYTHING, timeout: float = 20.0
) -> tuple[ListedDevice, ...]:
    """The devices that the CUDA driver lists, in its order, in a child process.

    By default every device of the machine in PCI order. For machines whose NVML is missing or
    broken, and where only the driver knows its order. This process's driver is not touched.

    Raises:
        DeviceError: there is no driver, or it does not start.
    """
    from gpumagic.errors import DeviceError
    from gpumagic.system import child_process

    changed = {**os.environ, **variables}
    environment = {name: value for name, value in changed.items() if value is not None}
    source = _LISTING.format(library=_LIBRARY)
    try:
        done = child_process.python(source, "-I", "-S", environment=environment, timeout=timeout)
    except (OSError, child_process.ChildTimeoutError) as error:
        raise DeviceError(f"the CUDA driver could not be asked: {error}") from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DeviceError(f"no CUDA driver: {reason.partition(': ')[2] or reason}")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return tuple(
        ListedDevice(row[0], row[1], int(row[2]), (int(row[3]), int(row[4]))) for row in rows
    )


def c_environment(name: str) -> str | None:
    """A variable as C code, the driver among it, reads it: the truth behind `os.environ`."""
    if os.name == "nt":
        return os.environ.get(name)
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    getenv.argtypes = [ctypes.c_char_p]
    value: bytes | None = getenv(name.encode())
    return None if value is None else os.fsdecode(value)
