"""The allocator's own lists, parsed: segments, blocks and recorded events."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gpumagic.memory.snapshot import (
    Block,
    Event,
    parse_events,
    parse_segments,
    parse_snapshot,
    read_segments,
    read_snapshot,
)
from tests.support.allocator import MIB


def block(address: int, size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    return {"address": address, "size": size, "state": state, **more}


def segment(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"device": 1, "total_size": 2048, "blocks": list(blocks), **more}


def test_a_segment_and_its_blocks() -> None:
    frame = {"name": "f", "filename": "a.py", "line": 3}
    raw = segment(
        block(1000, 512, requested_size=400, frames=[frame]),
        block(1512, 512, "inactive"),
        segment_pool_id=(0, 0),
        is_expandable=True,
    )
    (found,) = parse_segments([raw])
    assert (found.device, found.size, found.expandable) == (1, 2048, True)
    assert (found.pool, found.private, found.pending) == ((0, 0), False, False)
    assert found.blocks == (
        Block(1, 1000, 400, 512, True, (frame,)),
        Block(1, 1512, 512, 512, False),
    )


def test_fields_that_an_older_torch_lacks() -> None:
    (found,) = parse_segments([segment(block(1000, 512))])
    assert (found.private, found.expandable) == (False, False)
    assert found.blocks == (Block(1, 1000, 512, 512),)


def test_private_pools_and_blocks_that_wait_for_a_stream() -> None:
    graph, pool, waiting = parse_segments(
        [
            segment(segment_pool_id=(3, 0)),
            segment(segment_pool_id=(0, 7)),
            segment(block(1, 512, "active_pending_free")),
        ]
    )
    assert (graph.private, pool.private, waiting.private) == (True, True, False)
    assert [each.pending for each in (graph, pool, waiting)] == [False, False, True]
    assert not waiting.blocks[0].allocated


def test_events_are_allocations_and_requests_to_free() -> None:
    raw = [
        {"action": "alloc", "addr": 1, "time_us": 5},
        {"action": "segment_alloc", "addr": 9, "time_us": 6},
        {"action": "free_requested", "addr": 1},
        {"action": "free_completed", "addr": 1},
    ]
    assert parse_events(raw) == (Event(1, True, 5), Event(1, False))
    found = parse_snapshot({"segments": [segment(block(1, 8))], "device_traces": [[], raw]})
    assert found.recorded == (0, 4)
    assert found.events == ((), (Event(1, True, 5), Event(1, False)))
    assert [each.address for each in found.allocated_blocks()] == [1]


def test_read_from_torch(torch: ModuleType) -> None:
    kept = torch.empty(MIB, dtype=torch.uint8, device="cuda:1")
    (own,) = [each for each in read_segments() if each.device == 1]
    assert own.size == 2 * MIB
    assert own.blocks[0][:5] == (1, kept.data_ptr(), MIB, MIB, True)
    assert sum(each.size for each in own.blocks) == own.size
    found = read_snapshot()
    assert [each.address for each in found.allocated_blocks()] == [kept.data_ptr()]
    del kept
    assert list(read_snapshot().allocated_blocks()) == []
