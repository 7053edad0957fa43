"""Functions of torch, which is imported only on request: devices, contexts, events, allocator.

None of them initialises CUDA or creates a context unless its docstring says so.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from gpumagic.cuda import initialization
from gpumagic.errors import DeviceError
from gpumagic.system import text

if TYPE_CHECKING:
    from torch import device as _Device  # noqa: N812 - `device` is a function here
    from torch.cuda import Stream


#: The resolution of the time between two CUDA events, in seconds (``cudaEventElapsedTime``).
EVENT_RESOLUTION = 0.5e-6

#: With this variable torch's allocator keeps no memory, and no count of it.
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"

#: Seconds of waiting for the GPUs after which it is said.
_SILENT = 0.5

#: The devices of the open scopes of `chosen`, the innermost last.
_chosen: list[_Device] = []


def loaded() -> ModuleType | None:
    """Return torch if this process has imported it, else None. Never imports it."""
    module = sys.modules.get("torch")
    # While torch is being imported, or after its import failed, it is in sys.modules but unusable.
    return module if module is not None and hasattr(module, "cuda") else None


def module() -> ModuleType:
    """Return torch, which this process must have imported."""
    return sys.modules["torch"]


def require() -> ModuleType:
    """Return torch; import it if need be.

    Raises:
        DeviceError: torch is not installed or cannot be imported.
    """
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways (OSError, RuntimeError…)
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        remedy = "install it with: pip install torch" if missing else "'import torch' shows why"
        raise DeviceError(f"torch cannot be imported ({text.named(error)}); {remedy}") from error
    return torch


def built_with_cuda() -> bool:
    """Return whether the loaded torch has CUDA (or ROCm) support; False where none is loaded."""
    torch = loaded()
    return torch is not None and hasattr(torch._C, "_cuda_getDeviceCount")


def initialized() -> bool:
    """Return whether torch itself has initialised CUDA.

    The driver may be initialised where this is False: ``torch.cuda.is_available()`` initialises
    only the driver. `gpumagic.cuda.driver` queries that.
    """
    torch = loaded()
    return torch is not None and bool(torch.cuda.is_initialized())


def contexts() -> tuple[int, ...]:
    """Return the CUDA ordinals on which this process has a primary context. Creates none."""
    torch: Any = loaded()
    if torch is None or not torch.cuda.is_initialized():  # `initialized`, without its calls
        return ()
    # Not `torch.cuda.device_count`: in torch 2.6 that counts by the variable's current value.
    count = torch._C._cuda_getDeviceCount()
    return tuple(filter(torch._C._cuda_hasPrimaryContext, range(count)))


def memory_stats(ordinal: int) -> dict[str, Any]:
    """Return the caching allocator's counters of a device, nested, in one call.

    Costs far less than ``torch.cuda.memory_stats``, which flattens and sorts them. Only for a
    device that has a context (`contexts`).
    """
    return cast("dict[str, Any]", module()._C._cuda_memoryStats(ordinal))


def memory_held(ordinal: int) -> tuple[int, int]:
    """Return the allocated and the reserved bytes of torch's allocator on a device with a context.

    Raises:
        RuntimeError: the allocator keeps no counters (a pluggable one).
    """
    stats = memory_stats(ordinal)
    return stats["allocated_bytes"]["all"]["current"], stats["reserved_bytes"]["all"]["current"]


def c_functions() -> Any:
    """Return ``torch._C``, with the functions behind ``torch.cuda``; None without CUDA support."""
    return module()._C if built_with_cuda() else None


def allocator_settings() -> str | None:
    """Return the settings that torch's allocator read from its variable; None where not known."""
    read = getattr(c_functions(), "_accelerator_getAllocatorSettings", None)  # not in torch 2.6
    return None if read is None else str(read())


def replaced_is_available() -> str | None:
    """Return the file that has replaced ``torch.cuda.is_available``; None where it is torch's."""
    torch: Any = loaded()
    if torch is None:
        return None
    found = vars(torch.cuda).get("is_available")
    file = found.__code__.co_filename if type(found) is FunctionType else type(found).__name__
    return None if file == torch.cuda.__file__ else file


def in_bad_fork() -> bool:
    """Return whether this is a forked child of a process in which torch had initialised CUDA."""
    is_in_bad_fork = getattr(c_functions(), "_cuda_isInBadFork", None)
    return is_in_bad_fork is not None and bool(is_in_bad_fork())


def allocator_backend() -> str | None:
    """Return ``native``, ``cudaMallocAsync``, ``pluggable``, or None before initialisation."""
    return str(module()._C._cuda_getAllocatorBackend()) if initialized() else None


def uncounted() -> str | None:
    """Return why the allocator keeps no counters, lists no blocks and has no limit; else None."""
    if UNCACHED in os.environ and built_with_cuda():
        return f"{UNCACHED} is set: torch's allocator passes everything on and counts nothing"
    if allocator_backend() == "pluggable":
        return "a pluggable allocator is in use, of which torch keeps no counters"
    return None


def cpu_threads() -> int | None:
    """Return the number of CPU threads that torch uses; None where torch is not loaded."""
    torch = loaded()
    return None if torch is None else int(torch.get_num_threads())


def name(ordinal: int) -> str:
    """Return the name of a device that is in use."""
    return str(module().cuda.get_device_properties(ordinal).name)


def uuid(ordinal: int) -> str:
    """Return a device's UUID as NVML writes it, by torch's properties of the device."""
    properties = module().cuda.get_device_properties(ordinal)
    return f"GPU-{getattr(properties, 'uuid', '')}"


def memory_info(ordinal: int) -> tuple[int, int]:
    """Return free and total bytes of a device, as the CUDA runtime reports them.

    Creates a context where there is none: only for a device that has one (`contexts`).
    """
    free, total = module().cuda.mem_get_info(ordinal)
    return int(free), int(total)


def pinned_memory() -> tuple[int, int] | None:
    """Return the bytes of pinned host memory, and those of live tensors; None if not known.

    torch counts them since 2.7.
    """
    read = getattr(c_functions(), "_cuda_hostMemoryStats", None)
    if read is None or not initialized():
        return None
    stats = read()
    try:
        return int(stats["allocated_bytes"]["current"]), int(stats["active_bytes"]["current"])
    except KeyError:  # some versions count under other names
        return None


def allocated_blocks() -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ordinal and description of the blocks that the caching allocator has given out.

    Only for the native backend; neither waits for the GPU nor creates a context.
    """
    for segment in _segments():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                yield segment["device"], block


def _segments() -> list[dict[str, Any]]:
    snapshot = module().cuda.memory_snapshot
    try:
        return cast("list[dict[str, Any]]", snapshot(include_traces=False))
    except TypeError:  # an older torch always includes the recorded traces
        return cast("list[dict[str, Any]]", snapshot())


def in_private_pools() -> dict[int, int]:
    """Return the bytes that private pools have reserved and do not use, by CUDA ordinal.

    Those of CUDA graphs, and each ``torch.cuda.MemPool``. Only for the native backend.
    """
    found: dict[int, int] = {}
    for segment in _segments():
        if tuple(segment.get("segment_pool_id", ())) not in ((), (0, 0)):
            unused = segment["total_size"] - segment["allocated_size"]
            found[segment["device"]] = found.get(segment["device"], 0) + unused
    return found


def empty_cache() -> None:
    """Release the allocator's unused memory on the devices in use."""
    if initialized():
        module().cuda.empty_cache()


def history_is_recorded() -> bool:
    """Return whether the allocator records its history. False where CUDA is not initialised.

    The call would crash torch before that, and allocators other than its own raise.
    """
    return allocator_backend() == "native" and bool(module()._C._cuda_isHistoryEnabled())


def when_initialized(call: Callable[[], None]) -> None:
    """Call a function when torch initialises CUDA, before anything is allocated."""
    module().cuda._lazy_call(call)


def cancel(call: Callable[[], None]) -> None:
    """Undo `when_initialized` for a function."""
    waiting = queued_calls()
    waiting[:] = [queued for queued in waiting if queued[0] is not call]


def queued_calls() -> list[Any]:
    """Return the list of what torch calls when it initialises CUDA; an empty one without torch."""
    return cast("list[Any]", getattr(sys.modules.get("torch.cuda"), "_queued_calls", []))


# --- events and waiting ----------------------------------------------------------------------


def current_device() -> int | None:
    """Return the calling thread's current CUDA ordinal; None before torch has initialised CUDA."""
    torch: Any = loaded()
    if torch is None or not torch.cuda.is_initialized():
        return None
    return cast(int, torch._C._cuda_getDevice())


def current_stream(ordinal: int) -> Any:
    """Return the calling thread's current stream on a device."""
    return module().cuda.current_stream(ordinal)


def timing_event(stream: Stream) -> Any:
    """Return an event with timing enabled, recorded on ``stream``."""
    event = module().cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def seconds_between(first: Any, last: Any) -> float:
    """Return the seconds from one event to another: torch's C function, which no cell replaces."""
    return float(module()._C._CudaEventBase.elapsed_time(first, last)) / 1e3


def synchronize(ordinal: int) -> None:
    """Wait until a device has finished all work. Only for a device that has a context.

    Raises:
        RuntimeError: earlier GPU work has failed.
    """
    torch = module()
    with torch.cuda.device(ordinal):  # not `torch.cuda.synchronize`, which a cell may replace
        torch._C._cuda_synchronize()


def synchronize_all() -> None:
    """Wait for all work on every device in use."""
    for ordinal in contexts():
        synchronize(ordinal)


def wait_for_all(say: Callable[[], None]) -> None:
    """Wait for all work on every device in use, and call ``say`` where that takes long.

    A thread waits, since CUDA's own wait cannot be interrupted. It covers streams that are not
    torch's, and needs no memory: the GPU may be full.

    Raises:
        RuntimeError: earlier GPU work has failed.
        KeyboardInterrupt: by Ctrl-C.
    """
    found = list[RuntimeError]()

    def wait() -> None:
        try:
            synchronize_all()
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=wait, name="gpumagic-wait", daemon=True)
    thread.start()
    thread.join(_SILENT)
    if thread.is_alive():
        say()
    while thread.is_alive():
        thread.join(0.1)
    if found:
        raise found[0]


def allocations(ordinal: int) -> int | None:
    """Return the number of allocations so far on a device; None if not known."""
    try:
        return int(memory_stats(ordinal)["allocation"]["all"]["allocated"])
    except (RuntimeError, KeyError):  # another allocator may count nothing
        return None


def profiler() -> Any:
    """Return torch's profiler of host and GPU, a context manager."""
    profiling = module().profiler
    activities = profiling.ProfilerActivity
    return profiling.profile(activities=[activities.CPU, activities.CUDA])


def profiling() -> bool:
    """Return whether torch's profiler is active in this thread."""
    return bool(module().autograd._profiler_enabled())


def nvtx() -> Any:
    """Return ``torch.cuda.nvtx``; None where torch has none."""
    return module().cuda.nvtx if hasattr(c_functions(), "_nvtx") else None


def flop_counter() -> Any:
    """Return the module `torch.utils.flop_counter`.

    Raises:
        DeviceError: torch cannot be imported.
    """
    require()
    import torch.utils.flop_counter

    return torch.utils.flop_counter


@contextmanager
def chosen(which: _Device) -> Iterator[None]:
    """Make `device` return ``which`` within the scope."""
    _chosen.append(which)
    try:
        yield
    finally:
        _chosen.pop()


def device() -> _Device:
    """Return the device for device-agnostic code: CUDA (or ROCm) if present, else MPS, XPU or CPU.

    Imports torch. With ``%load_ext gpumagic`` the call does not initialise the driver, so that
    a later ``%gpu off`` still works.

    Raises:
        DeviceError: torch cannot be imported.

    Examples:
        >>> gpumagic.device()
        device(type='cuda')

    .. versionadded:: 0.1.0
    """
    torch = require()
    if _chosen:
        return _chosen[-1]
    initialization.withdraw_without_driver()
    if torch.cuda.is_available():
        return cast("_Device", torch.device("cuda"))
    for kind in ("mps", "xpu"):
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_available():
            return cast("_Device", torch.device(kind))
    return cast("_Device", torch.device("cpu"))
