"""The allocator's counters at a cell's start, compared with those after its failure.

A reading takes microseconds a device, makes no context and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpumagic.cuda import torch_cuda


class Counts(NamedTuple):
    """The counters of one device."""

    #: Bytes of live tensors.
    allocated: int = 0
    #: The numbers of allocations that have failed and that have succeeded until now.
    failures: int = 0
    succeeded: int = 0
    #: The bytes of all allocations until now.
    total_allocated: int = 0


#: By CUDA ordinal; a device that was not in use is missing.
StartCounters = Mapping[int, Counts]


def read() -> StartCounters | None:
    """Return the counters now; None for an allocator that does not count its failures."""
    if torch_cuda.loaded() is None:
        return {}
    if torch_cuda.allocator_backend() not in (None, "native"):
        return None
    return {i: _counts(torch_cuda.memory_stats(i)) for i in torch_cuda.contexts()}


def _counts(stats: Mapping[str, Any]) -> Counts:
    return Counts(
        stats["allocated_bytes"]["all"]["current"],
        stats["num_ooms"],
        stats["allocation"]["all"]["allocated"],
        stats["allocated_bytes"]["all"]["allocated"],
    )


def allocated_since(begun: StartCounters, ordinal: int) -> int | None:
    """Return the bytes allocated since, also those freed again; None if counters were reset."""
    now, before = (read() or {}).get(ordinal, Counts()), begun.get(ordinal, Counts())
    return (
        None if now.succeeded < before.succeeded else now.total_allocated - before.total_allocated
    )


def failed_since(begun: StartCounters | None) -> set[int] | None:
    """Return the devices on which an allocation of this process has failed since, if known.

    Without ``begun``, those on which one has ever failed.
    """
    now = read()
    if now is None:
        return None
    failed = set()
    for ordinal, counts in now.items():
        before = (begun or {}).get(ordinal, Counts())
        if counts.succeeded < before.succeeded:  # the user has reset the counters meanwhile
            before = Counts()
        if counts.failures > before.failures:
            failed.add(ordinal)
    return failed
