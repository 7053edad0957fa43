"""Which allocations of a cell are alive at its end, by the allocator's event log."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gpumagic.memory.retained import EventLog, Living, living_numbers, recorded_by_others
from gpumagic.memory.snapshot import parse_events
from tests.support.allocator import MIB, empty


def test_living_numbers() -> None:
    def event(action: str, addr: int) -> dict[str, Any]:
        return {"action": action, "addr": addr}

    recorded = [
        event("alloc", 1),
        event("alloc", 2),
        event("free_requested", 1),
        event("free_completed", 1),
        event("segment_alloc", 7),
        event("alloc", 1),
        event("alloc", 3),
    ]
    events = parse_events(recorded)
    assert living_numbers(events, 4) == {2: 1, 1: 2, 3: 3}
    assert living_numbers(events, 2) == {1: 0, 3: 1}
    assert living_numbers(events, 0) == {}
    assert living_numbers(events, 5) is None
    assert Living({0: 10, 2: 5, 7: 1}).bytes([(0, 3), (7, 8)]) == 16


def test_a_log_of_gpumagic_is_no_recording(torch: ModuleType) -> None:
    log = EventLog.begin()
    assert log is not None
    assert torch._C._cuda_isHistoryEnabled()
    assert not recorded_by_others()
    gone, kept = empty(torch, 3 * MIB), empty(torch, MIB)
    del gone
    living = log.end({0: 2})[0]
    assert [living.bytes([(n, n + 1)]) for n in (0, 1)] == [0, MIB]
    assert not torch._C._cuda_isHistoryEnabled()
    del kept


def test_a_recording_of_the_users_goes_on_and_a_new_one_disturbs(torch: ModuleType) -> None:
    record = torch._C._cuda_record_memory_history
    log = EventLog.begin()
    assert log is not None
    torch.cuda.memory._record_memory_history(max_entries=100, stacks="python")
    assert log.disturbed
    assert recorded_by_others()
    assert log.end({0: 0}) == {}
    assert torch._C._cuda_isHistoryEnabled()
    assert torch._C._cuda_record_memory_history is record
    torch.cuda.memory._record_memory_history(enabled=None)
    assert not recorded_by_others()
