"""Parse the snapshots of torch's caching allocator: segments, blocks, recorded events.

``torch.cuda.memory_snapshot`` reads the allocator's own lists, waits for nothing and makes no
context; the recorded events are there only where a history is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpumagic.cuda import torch_cuda

#: The states of a block that is allocated, and of one that is free. In any other it is freed, but
#: some stream may still be using it.
_ALLOCATED, _FREE = "active_allocated", "inactive"


class Block(NamedTuple):
    """A block of a segment: an allocation, or a free block. Bytes."""

    device: int
    address: int
    #: The size that was requested; `size` where that is not known.
    requested: int
    #: The size as the allocator rounds it.
    size: int
    allocated: bool = True
    #: The Python lines that allocated it, innermost first, where torch recorded them.
    frames: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Segment:
    """A piece of device memory that the allocator has reserved. Bytes."""

    device: int
    size: int
    #: The pool: a CUDA graph's number, and that of a MemPool or of a handle that graphs share.
    pool: tuple[int, int]
    expandable: bool
    #: Whether memory in it is freed, but some stream may still be using it.
    pending: bool
    #: In the order of addresses.
    blocks: tuple[Block, ...]

    @property
    def private(self) -> bool:
        """Whether it belongs to a CUDA graph's or a user's pool, which others cannot use."""
        return self.pool != (0, 0)


class Event(NamedTuple):
    """An allocation, or the request to free one."""

    address: int
    allocated: bool
    #: Since the epoch; 0 where torch does not report it.
    microseconds: int = 0


@dataclass(frozen=True)
class Snapshot:
    """The allocator's segments and recorded events."""

    segments: tuple[Segment, ...]
    #: By CUDA ordinal, oldest first.
    events: tuple[tuple[Event, ...], ...]
    #: By CUDA ordinal, the number of recorded events of all kinds.
    recorded: tuple[int, ...]

    def allocated_blocks(self) -> Iterable[Block]:
        """Return the blocks that are allocated."""
        return (block for segment in self.segments for block in segment.blocks if block.allocated)


def read_segments() -> tuple[Segment, ...]:
    """Return the segments now, of all devices in use; only for torch's native allocator."""
    return parse_segments(torch_cuda.memory_snapshot())


def read_snapshot() -> Snapshot:
    """Return the segments and the recorded events now.

    Raises:
        RuntimeError: the allocator takes no snapshots.
    """
    return parse_snapshot(torch_cuda.snapshot())


def parse_snapshot(raw: Mapping[str, Any]) -> Snapshot:
    """Return what ``torch.cuda.memory._snapshot`` has returned."""
    traces = raw["device_traces"]
    return Snapshot(
        parse_segments(raw["segments"]),
        tuple(map(parse_events, traces)),
        tuple(map(len, traces)),
    )


def parse_segments(raw: Iterable[Mapping[str, Any]]) -> tuple[Segment, ...]:
    """Return what ``torch.cuda.memory_snapshot`` has returned."""
    return tuple(map(_segment, raw))


def _segment(raw: Mapping[str, Any]) -> Segment:
    device, blocks = raw["device"], raw["blocks"]
    graph, other = raw.get("segment_pool_id", (0, 0))
    return Segment(
        device=device,
        size=raw["total_size"],
        pool=(graph, other),
        expandable=bool(raw.get("is_expandable")),
        pending=any(block["state"] not in (_ALLOCATED, _FREE) for block in blocks),
        blocks=tuple(
            Block(
                device,
                block["address"],
                block.get("requested_size", block["size"]),
                block["size"],
                block["state"] == _ALLOCATED,
                tuple(block.get("frames") or ()),
            )
            for block in blocks
        ),
    )


def parse_events(raw: Sequence[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Return the allocations and requests to free among a device's recorded events."""
    return tuple(
        Event(event["addr"], event["action"] == "alloc", event.get("time_us", 0))
        for event in raw
        if event["action"] in ("alloc", "free_requested")
    )
