"""The counters at a cell's start: what was allocated since, and where an allocation failed."""

from __future__ import annotations

from types import ModuleType

import pytest

from gpumagic.memory import start_counters
from gpumagic.memory.start_counters import Counts, allocated_since, failed_since
from tests.support.allocator import MIB, empty


def test_what_is_allocated_since_counts_also_when_it_is_freed(torch: ModuleType) -> None:
    before = start_counters.read()
    assert before is not None
    assert before[0] == Counts()
    empty(torch, 3 * MIB)
    kept = empty(torch, MIB)
    assert allocated_since(before, 0) == 4 * MIB
    assert allocated_since(before, 1) == 0
    assert (start_counters.read() or {})[0].allocated == MIB
    del kept


def test_after_a_reset_by_the_user_it_is_not_known(torch: ModuleType) -> None:
    empty(torch, MIB)
    before = start_counters.read()
    assert before is not None
    torch.cuda.reset_accumulated_memory_stats(0)
    assert allocated_since(before, 0) is None
    assert failed_since(before) == set()


def test_a_failed_allocation_is_of_its_device_and_time(torch: ModuleType) -> None:
    for ordinal in range(torch.cuda.device_count()):  # other tests' failures
        torch.cuda.reset_accumulated_memory_stats(ordinal)
    before = start_counters.read()
    with pytest.raises(torch.OutOfMemoryError):
        empty(torch, 2**50, 1)
    after = start_counters.read()
    assert failed_since(before) == failed_since(None) == {1}
    assert failed_since(after) == set()


def test_other_allocators_count_no_failures(
    torch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_counters.torch_cuda, "allocator_backend", lambda: "cudaMallocAsync")
    assert start_counters.read() is None
    assert failed_since({}) is None
