"""The conditions of a run: the wait for a processor, empty L2 caches, and a delay.

Runs that are queued behind a delay are worked off without a gap: they alone tell the GPU's time
where Python cannot launch fast enough. The delay is torch's own kernel ``torch.cuda._sleep``, one
on each device; it ends by itself: code that synchronises cannot hang.

A cache is emptied by writing more than it holds, to the driver's own memory, not torch's: the
user's peak, what torch has reserved and the sign of an allocation stay as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

from gpumagic.cuda import driver, streams, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.results.timing import is_bound
from gpumagic.system import system_files
from gpumagic.timing.event_timer import DeviceTimer, ready_devices, wait_for

# --- the processor --------------------------------------------------------------------------------


def processor_wait() -> float | None:
    """Return the seconds for which this thread has waited for a processor; None where not known.

    Linux counts them (``/proc/PID/schedstat``: nanoseconds that it ran, and that it waited).
    """
    ran, waited, *_ = (system_files.read("/proc/thread-self/schedstat") or "0 0").split()
    return int(waited) / 1e9 if int(ran) else None


def wait_notes(part: float | None) -> Iterator[str]:
    """Yield a note on the part of the time that Python waited for a processor, unless small."""
    if part is not None and is_bound(1.0, 1.0 - part):
        yield f"Python waited {part * 100:.0f} % of the time for a processor, which others had"


# --- a delay --------------------------------------------------------------------------------------

#: The delay is so many times as long as the host needs.
FACTOR = 2.0
#: And so many seconds longer.
MORE = 3e-3
#: The longest delay, in seconds.
LONGEST = 0.5
#: Cycles of a second, of a clock that few GPUs reach: on others the delay is longer.
_CLOCK = 2e9


class Delayed(NamedTuple):
    """Devices that a delay keeps busy, and on how many streams work waits for its end."""

    devices: tuple[DeviceTimer, ...]
    streams: int


def launch_delay(ordinal: int, seconds: float) -> None:
    """Keep a device busy on the current stream."""
    cuda = cast(Any, torch_cuda.loaded()).cuda
    with cuda.device(ordinal):
        cuda._sleep(round(seconds * _CLOCK))


def start(delay: float) -> Delayed:
    """Launch a delay of some seconds on each device in use.

    Raises:
        RuntimeError: a device has failed, or a graph is being captured.
    """
    with streams.Relaxed():
        devices = ready_devices()
        used = _used(devices)
        for device in devices:
            launch_delay(device.ordinal, delay)
            device.start.record(device.streams.current())
        for device, each in used:
            if each.cuda_stream != device.streams.current().cuda_stream:
                device.start.wait(each)
    return Delayed(devices, len(used))


def read(delayed: Delayed) -> dict[int, float] | None:
    """Wait for what was queued; return the seconds until it was done, by device.

    None where a delay ended before all was queued (Python waits for the GPU, or was slow), and
    while a graph is captured.

    Raises:
        RuntimeError: a device has failed.
    """
    with streams.Relaxed():
        used = _used(delayed.devices)
        if any(streams.captures(each) for _, each in used):
            return None
        ends = [(device, torch_cuda.timing_event(each)) for device, each in used]
        in_time = not any(device.start.query() for device in delayed.devices)
        for _, event in ends:
            wait_for(event)
        # A stream that was handed out meanwhile did not wait for the delay.
        if not in_time or len(ends) != delayed.streams:
            return None
        taken = dict.fromkeys((device.ordinal for device in delayed.devices), 0.0)
        for device, event in ends:
            seconds = device.start.elapsed_time(event) / 1e3
            taken[device.ordinal] = max(taken[device.ordinal], seconds)
    return taken


def _used(devices: Iterable[DeviceTimer]) -> list[tuple[DeviceTimer, Any]]:
    """Return the streams on which there can be work."""
    return [(device, each) for device in devices for each in device.streams.used()]


# --- empty caches ---------------------------------------------------------------------------------

#: Bytes written to empty a cache, in sizes of the cache.
_CACHES = 2


class ColdCaches:
    """Empties caches, once ``wanted``; `release` frees the memory that it takes."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        #: Address and bytes of what is written, by ordinal.
        self._buffers: dict[int, tuple[ctypes.c_uint64, int]] = {}

    def empty(self) -> None:
        """Write more to each device in use than its L2 cache holds, if that is wanted.

        Raises:
            DeviceError: a device does not report its cache's size, or has no memory to write to.
        """
        ordinals = torch_cuda.contexts() if self._wanted else ()
        if streams.under_way(ordinals):
            return  # writing would become a part of the graph, and there is no GPU time anyway
        torch = cast(Any, torch_cuda.loaded())
        for ordinal in ordinals:
            with torch.cuda.device(ordinal):
                if ordinal not in self._buffers:
                    self._buffers[ordinal] = _allocated(ordinal)
                address, size = self._buffers[ordinal]
                stream = ctypes.c_void_p(streams.of(ordinal).current().cuda_stream)
                code = _driver().cuMemsetD8Async(address, 0, ctypes.c_size_t(size), stream)
                if code != driver.SUCCESS:
                    raise DeviceError(f"the L2 cache of cuda:{ordinal} was not emptied: {code}")

    def release(self) -> None:
        """Free what was written, which waits for the device."""
        while self._buffers:
            ordinal, (address, _) = self._buffers.popitem()
            with cast(Any, torch_cuda.loaded()).cuda.device(ordinal):
                _driver().cuMemFree_v2(address)

    def __str__(self) -> str:
        sizes = [f"cuda:{i} {n // _CACHES / 2**20:.3g} MiB" for i, (_, n) in self._buffers.items()]
        return ", ".join(sizes) or "there is no GPU in use"


def _driver() -> Any:
    library = driver.loaded_library()
    if library is None:
        raise DeviceError("an L2 cache is emptied by CUDA's driver, which is not loaded")
    return library


def _allocated(ordinal: int) -> tuple[ctypes.c_uint64, int]:
    """Return memory on the current device."""
    properties = cast(Any, torch_cuda.loaded()).cuda.get_device_properties(ordinal)
    size, address = _CACHES * getattr(properties, "L2_cache_size", 0), ctypes.c_uint64()
    if not size:
        raise DeviceError(f"cuda:{ordinal} does not report the size of its L2 cache")
    torch_cuda.synchronize(ordinal)  # before CUDA 12, this makes the context the thread's
    if _driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) != driver.SUCCESS:
        raise DeviceError(f"no memory on cuda:{ordinal} to empty its L2 cache with")
    return address, size
