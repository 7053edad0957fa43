"""Report on GPU memory: torch's by its allocator's counters, all else by NVML.

Imports no torch and makes no context.
"""

from __future__ import annotations

import os
from dataclasses import replace

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.devices import devices
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.results.memory import DeviceMemory, MemoryReport

#: What torch's allocator holds on a device: allocated, reserved and the peak of allocated bytes.
_Held = tuple[int | None, int | None, int | None]
#: Of an allocator that keeps no counters.
_UNKNOWN: _Held = (None, None, None)


def memory_report(previous: MemoryReport | None = None) -> MemoryReport:
    """Return the memory of each visible device, with the change since ``previous``.

    What torch holds comes from its allocator, everything else from NVML; without NVML, free and
    total memory come from the CUDA runtime, for devices on which this process has a context.
    """
    table = devices(processes=False, load=False)
    seen = {device.ordinal: device for device in table if device.ordinal is not None}
    held = {ordinal: _held(ordinal) for ordinal in torch_cuda.contexts()}
    before = previous.devices if previous is not None else {}
    rows = {
        ordinal: _since(_memory(ordinal, seen.get(ordinal), held.get(ordinal)), before.get(ordinal))
        for ordinal in sorted({*seen, *held})
    }
    if rows:
        unreadable = (f"GPU {d.index}: {d.error}" for d in seen.values() if d.error)
        notes = [*allocator_notes(), *unreadable, *table.notes]
        notes += [table.error] if table.error else []
        pinned, active = torch_cuda.pinned_memory() or (None, None)
        return MemoryReport(
            rows,
            notes=tuple(notes),
            pinned=pinned,
            pinned_active=active,
            in_use=torch_cuda.initialized(),
        )
    return MemoryReport(error=table.error or _nothing_seen(table))


def _nothing_seen(table: DeviceTable) -> str:
    if not len(table):
        return "this machine has no GPU"
    if any(device.visible is not False for device in table):
        return "CUDA's ordinals of the GPUs are not known before it starts; %gpu lists the GPUs"
    return "this process sees no GPU of this machine; %gpu says why"


def _held(ordinal: int) -> _Held:
    try:
        stats = torch_cuda.memory_stats(ordinal)
    except RuntimeError:  # a pluggable allocator without counters
        return _UNKNOWN
    allocated = stats["allocated_bytes"]["all"]
    return allocated["current"], stats["reserved_bytes"]["all"]["current"], allocated["peak"]


def _memory(ordinal: int, device: Device | None, held: _Held | None) -> DeviceMemory:
    """Return one device's row, by NVML's figures and torch's."""
    context = held is not None
    if held is None:
        # Without a context torch holds nothing.
        held = (0, 0, 0) if torch_cuda.built_with_cuda() else _UNKNOWN
    allocated, reserved, peak = held
    divided = device is not None and bool(device.mig)
    device = device and device.as_seen()
    free, total = (device.memory_free, device.memory_total) if device else (None, None)
    used = device.memory_used if device else None
    # NVML counts the driver's own memory in neither; the runtime's total is without it.
    own = None if free is None or total is None or used is None else total - free - used
    if context and (divided or free is None or total is None):
        free, total = _runtime_memory(ordinal)
        own = None
    return DeviceMemory(
        allocated=allocated,
        reserved=reserved,
        peak=peak,
        free=free,
        total=total,
        outside=_outside(device.memory_own if device else None, reserved, context),
        others=device.memory_others if device else None,
        name=device.name if device else None,
        index=device.index if device else None,
        context=context,
        driver_reserved=own,
    )


def _runtime_memory(ordinal: int) -> tuple[int | None, int | None]:
    """Return free and total bytes of a device that has a context."""
    try:
        return torch_cuda.memory_info(ordinal)
    except RuntimeError:  # the device is lost
        return None, None


def _outside(own: int | None, reserved: int | None, context: bool) -> int | None:
    """Return this process's memory outside the allocator: CUDA context, workspaces."""
    if own is None or (reserved is None and context):
        return None
    outside = own - (reserved or 0)
    # NVML was read before the allocator: a negative remainder says nothing.
    return outside if outside >= 0 else None


def _since(now: DeviceMemory, before: DeviceMemory | None) -> DeviceMemory:
    if before is None:
        return now
    return replace(
        now,
        allocated_change=_minus(now.allocated, before.allocated),
        reserved_change=_minus(now.reserved, before.reserved),
    )


def _minus(now: int | None, before: int | None) -> int | None:
    # None before: torch was not imported, and had allocated nothing.
    return None if now is None else now - (before or 0)


def uncounted() -> tuple[str, ...]:
    """Return a note where the allocator keeps no counters."""
    if _UNCACHED not in os.environ:
        return ()
    return (f"{_UNCACHED} is set: torch's allocator passes everything on and counts nothing",)


#: With this variable torch's allocator keeps no memory, and no count of it.
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
PLUGGABLE = "a pluggable allocator is in use, of which torch keeps no counters"


def allocator_notes() -> tuple[str, ...]:
    """Return notes on what the allocator's figures mean."""
    if torch_cuda.loaded() is None:
        return ("torch is not imported: these are the driver's figures alone",)
    if not torch_cuda.built_with_cuda():
        return ("this torch is built without CUDA: these are the driver's figures alone",)
    if uncounted():
        return uncounted()
    backend = torch_cuda.allocator_backend()
    if backend == "cudaMallocAsync":
        return (
            "backend:cudaMallocAsync: the driver keeps the counters; memory that waits to be freed "
            "counts as allocated, peaks of reserved are upper bounds, failures are not counted",
        )
    if backend == "pluggable":
        return (PLUGGABLE,)
    return ()
