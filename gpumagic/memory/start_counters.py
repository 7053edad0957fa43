"""The allocator's counters as a cell begins: what its failure is compared with.

A reading costs microseconds a device, makes no context and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpumagic.cuda import torch_cuda


class Counts(NamedTuple):
    """Of one device."""

    #: Bytes of live tensors.
    allocated: int = 0
    #: How many allocations have ever failed, and how many were ever served.
    failures: int = 0
    served: int = 0
    #: Bytes that were ever handed out.
    given: int = 0


#: By CUDA ordinal; a device that was not in use is missing.
Beginning = Mapping[int, Counts]


def read() -> Beginning | None:
    """The counters now; None for an allocator that does not count its failures."""
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


def given_since(begun: Beginning, ordinal: int) -> int | None:
    """Bytes handed out since, also those taken back; None if the counters were reset."""
    now, before = (read() or {}).get(ordinal, Counts()), begun.get(ordinal, Counts())
    return None if now.served < before.served else now.given - before.given


def failed_since(begun: Beginning | None) -> set[int] | None:
    """The devices on which an allocation of this process has failed since; None if unknown.

    Without ``begun``, those on which one has ever failed.
    """
    now = read()
    if now is None:
        return None
    failed = set()
    for ordinal, counts in now.items():
        before = (begun or {}).get(ordinal, Counts())
        if counts.served < before.served:  # the user has reset the counters meanwhile
            before = Counts()
        if counts.failures > before.failures:
            failed.add(ordinal)
    return failed
