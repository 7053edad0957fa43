"""Report on GPU memory: torch's by its allocator's counters, all else by NVML.

Imports no torch and makes no context.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from gpumagic.cuda import device_table
from gpumagic.cuda.pytorch import allocator, torch_cuda
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.results.memory.memory_report import DeviceMemory, MemoryReport


def memory_report(previous: MemoryReport | None = None) -> MemoryReport:
    """Return the memory of each visible device, with the change since ``previous``.

    What torch holds comes from its allocator, everything else from NVML; without NVML, free and
    total memory come from the CUDA runtime, for devices on which this process has a context.
    """
    table = device_table.read()
    seen = {device.ordinal: device for device in table if device.ordinal is not None}
    before = previous.devices if previous is not None else {}
    rows = {
        ordinal: _since(_memory(ordinal, seen.get(ordinal)), before.get(ordinal))
        for ordinal in sorted({*seen, *torch_cuda.contexts()})
    }
    if not rows:
        return MemoryReport(error=table.error or _nothing_seen(table))
    notes = [*allocator_notes(), *(f"GPU {d.index}: {d.error}" for d in seen.values() if d.error)]
    notes += table.notes if table.error is None else (*table.notes, table.error)
    pinned, active = allocator.pinned_memory() or (None, None)
    in_use = torch_cuda.initialized()
    return MemoryReport(rows, tuple(notes), pinned=pinned, pinned_active=active, in_use=in_use)


def _nothing_seen(table: DeviceTable) -> str:
    if not len(table):
        return "this machine has no GPU"
    if any(device.visible is not False for device in table):
        return "CUDA's ordinals of the GPUs are not known before it starts; %gpu lists the GPUs"
    return "this process sees no GPU of this machine; %gpu says why"


def _by_allocator(ordinal: int, context: bool) -> tuple[int | None, int | None, int | None]:
    """Return allocated, reserved and peak bytes by torch's allocator."""
    if not context:  # without one torch holds nothing
        return (0, 0, 0) if torch_cuda.built_with_cuda() else (None, None, None)
    if allocator.uncounted():
        return None, None, None
    try:
        stats = allocator.stats(ordinal)
    except RuntimeError:  # the driver keeps the counters, and has failed
        return None, None, None
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return allocated["current"], reserved["current"], allocated["peak"]


def _memory(ordinal: int, device: Device | None) -> DeviceMemory:
    """Return one device's row, by NVML's figures and torch's."""
    context = ordinal in torch_cuda.contexts()
    allocated, reserved, peak = _by_allocator(ordinal, context)
    seen = Device(-1) if device is None else device.as_seen()
    free, total, used = seen.memory_free, seen.memory_total, seen.memory_used
    # NVML counts the driver's own memory in neither; the runtime's total is without it.
    own = None if free is None or total is None or used is None else total - free - used
    if context and (seen.mig or free is None or total is None):
        free = total = own = None
        with suppress(RuntimeError):  # the device is lost
            free, total = torch_cuda.memory_info(ordinal)
    return DeviceMemory(
        allocated,
        reserved,
        peak,
        free,
        total,
        outside=_outside(seen.memory_own, reserved, context),
        others=seen.memory_others,
        name=seen.name,
        index=None if device is None else device.index,
        context=context,
        driver_reserved=own,
    )


def _outside(own: int | None, reserved: int | None, context: bool) -> int | None:
    """Return this process's memory outside the allocator: CUDA context, workspaces."""
    if own is None or (reserved is None and context):
        return None
    outside = own - (reserved or 0)
    # NVML was read before the allocator: a negative remainder says nothing.
    return outside if outside >= 0 else None


def _since(now: DeviceMemory, before: DeviceMemory | None) -> DeviceMemory:
    if before is None or now.allocated is None or now.reserved is None:
        return now
    return replace(
        now,  # None before: torch was not imported, and had allocated nothing
        allocated_change=now.allocated - (before.allocated or 0),
        reserved_change=now.reserved - (before.reserved or 0),
    )


#: What the figures of this allocator mean.
_OF_DRIVER = (
    "backend:cudaMallocAsync: the driver keeps the counters; memory that waits to be freed counts "
    "as allocated, peaks of reserved are upper bounds, failures are not counted"
)


def allocator_notes() -> tuple[str, ...]:
    """Return notes on what the allocator's figures mean."""
    if torch_cuda.loaded() is None:
        return ("torch is not imported: these are the driver's figures alone",)
    if not torch_cuda.built_with_cuda():
        return ("this torch is built without CUDA: these are the driver's figures alone",)
    if why := allocator.uncounted():
        return (why,)
    return (_OF_DRIVER,) if allocator.backend() == "cudaMallocAsync" else ()
