"""The allocator of torch: its settings, counters, blocks and history.

No function initialises CUDA or creates a context.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

from gpumagic.cuda.pytorch import torch_cuda

#: With this variable torch's allocator keeps no memory, and no count of it.
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"


def backend() -> str | None:
    """Return ``native``, ``cudaMallocAsync``, ``pluggable``, or None before initialisation."""
    if not torch_cuda.initialized():
        return None
    return str(torch_cuda.module()._C._cuda_getAllocatorBackend())


def settings() -> str | None:
    """Return the settings that torch's allocator read from its variable; None where not known."""
    # Not in torch 2.6.
    read = getattr(torch_cuda.c_functions(), "_accelerator_getAllocatorSettings", None)
    return None if read is None else str(read())


def uncounted() -> str | None:
    """Return why the allocator keeps no counters, lists no blocks and has no limit; else None."""
    if UNCACHED in os.environ and torch_cuda.built_with_cuda():
        return f"{UNCACHED} is set: torch's allocator passes everything on and counts nothing"
    if backend() == "pluggable":
        return "a pluggable allocator is in use, of which torch keeps no counters"
    return None


def stats(ordinal: int) -> dict[str, Any]:
    """Return the caching allocator's counters of a device, nested, in one call.

    Costs far less than ``torch.cuda.memory_stats``, which flattens and sorts them. Only for a
    device that has a context (`torch_cuda.contexts`).
    """
    return cast("dict[str, Any]", torch_cuda.module()._C._cuda_memoryStats(ordinal))


def held(ordinal: int) -> tuple[int, int]:
    """Return the allocated and the reserved bytes of torch's allocator on a device with a context.

    Raises:
        RuntimeError: the allocator keeps no counters (a pluggable one).
    """
    found = stats(ordinal)
    return found["allocated_bytes"]["all"]["current"], found["reserved_bytes"]["all"]["current"]


def allocations(ordinal: int) -> int | None:
    """Return the number of allocations so far on a device; None if not known."""
    try:
        return int(stats(ordinal)["allocation"]["all"]["allocated"])
    except (RuntimeError, KeyError):  # another allocator may count nothing
        return None


def pinned_memory() -> tuple[int, int] | None:
    """Return the bytes of pinned host memory, and those of live tensors; None if not known.

    torch counts them since 2.7.
    """
    read = getattr(torch_cuda.c_functions(), "_cuda_hostMemoryStats", None)
    if read is None or not torch_cuda.initialized():
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
    snapshot = torch_cuda.module().cuda.memory_snapshot
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
    if torch_cuda.initialized():
        torch_cuda.module().cuda.empty_cache()


def history_is_recorded() -> bool:
    """Return whether the allocator records its history. False where CUDA is not initialised.

    The call would crash torch before that, and allocators other than its own raise.
    """
    return backend() == "native" and bool(torch_cuda.module()._C._cuda_isHistoryEnabled())
