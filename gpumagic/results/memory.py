"""What holds GPU memory, and what a cell did to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumagic.results.base import Result
from gpumagic.system.text import plural


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device as one process sees it. Bytes; None where not known."""

    #: Held by live tensors, by torch's caching allocator.
    allocated: int | None = None
    #: Taken from the device by the allocator: live tensors and cache.
    reserved: int | None = None
    #: Highest ``allocated`` since the start or the user's last reset.
    peak: int | None = None
    free: int | None = None
    total: int | None = None
    #: This process, outside the allocator: the CUDA context, libraries' workspaces.
    outside: int | None = None
    #: Other processes.
    others: int | None = None
    name: str | None = None
    #: nvidia-smi's index.
    index: int | None = None
    #: Change of ``allocated`` and ``reserved`` since the previous report; None for the first.
    allocated_change: int | None = None
    reserved_change: int | None = None
    #: Whether this process has a CUDA context on the device; without one it holds nothing there.
    context: bool | None = None
    #: Of ``reserved``: free, but between live tensors within a segment, so that it can serve only
    #: smaller ones and be given back to nobody.
    fragmented: int | None = None
    #: Of ``reserved``: held for CUDA graphs apart from all else, and for `torch.cuda.MemPool` and
    #: pools that graphs share (`torch.cuda.graph_pool_handle`), which torch does not tell apart.
    graph_pools: int | None = None
    mem_pools: int | None = None


@dataclass(frozen=True)
class MemoryReport(Result):
    """GPU memory now: one `DeviceMemory` for each CUDA ordinal."""

    devices: Mapping[int, DeviceMemory] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Why there is no report, if there is none: one line.
    error: str | None = None
    #: The host's memory that torch's allocator has pinned, live tensors and cache, and the live
    #: tensors' part; bytes. None where torch does not count it (before 2.7).
    pinned: int | None = None
    pinned_active: int | None = None
    #: Whether torch uses CUDA in this process.
    in_use: bool = False

    def __repr__(self) -> str:
        return f"<MemoryReport: {plural(len(self.devices), 'device')}>"


@dataclass(frozen=True)
class DeviceMemoryDelta:
    """What a cell did to one device's memory, by the allocator's counters. Bytes, exact."""

    #: Change of the bytes held by live tensors.
    allocated: int
    #: Change of the bytes that the allocator holds.
    reserved: int
    #: Highest ``allocated`` during the cell, above its value at the start.
    peak: int
    #: Bytes held by live tensors at the end.
    allocated_now: int = 0
    #: Bytes that the allocator holds at the end.
    reserved_now: int = 0
    #: Allocations that failed (out of memory) during the cell.
    ooms: int = 0
    #: Allocations that succeeded only after the cache was emptied.
    retries: int = 0


@dataclass(frozen=True)
class MemoryDelta(Result):
    """What a cell did to GPU memory: one `DeviceMemoryDelta` for each CUDA ordinal in use."""

    devices: Mapping[int, DeviceMemoryDelta] = field(default_factory=dict)
    #: True if the cell raised or was interrupted.
    partial: bool = False
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none: one line.
    error: str | None = None

    def __repr__(self) -> str:
        inner = ", ".join(f"{i}: {d.allocated:+d} B" for i, d in self.devices.items())
        return f"<MemoryDelta {inner or 'no device'}>"
