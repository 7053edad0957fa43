"""The allocator's blocks: what is allocated, where, and what would be left without some of it.

From ``torch.cuda.memory_snapshot``, which reads the allocator's own lists, waits for nothing and
makes no context. Other allocators keep no such lists: there the tensors' storages stand for blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.tensor_functions import storage_address, tensor_base
from gpumagic.errors import DeviceError
from gpumagic.system import text


class UnreadableError(DeviceError):
    """The allocator does not tell what it holds."""


@dataclass
class Block:
    """One allocation that is live. Bytes."""

    device: int
    address: int
    #: What was asked for.
    requested: int
    #: What it takes, as the allocator rounds it; `requested` where that is not known.
    size: int
    #: The Python lines that allocated it, innermost first, where torch recorded them.
    frames: tuple[Mapping[str, Any], ...] = ()


@dataclass
class Segment:
    """A piece of device memory that the allocator holds. Bytes."""

    device: int
    total: int
    #: Of a CUDA graph's or a user's pool, which others cannot use.
    private: bool
    expandable: bool
    #: Whether memory in it is freed, but some stream may still be using it.
    pending: bool
    #: In the order of addresses: the size, and the address of a live block (None for a free one).
    layout: list[tuple[int, int | None]] = field(default_factory=list)


class Blocks:
    """All live blocks of the devices in use, and where a tensor's storage lies among them."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self.segments: list[Segment] = []
        #: By CUDA ordinal, what the allocator says is allocated, and reserved.
        self.allocated: dict[int, int] = {}
        self.reserved: dict[int, int] = {}
        #: False for an allocator that does not list its blocks.
        self.exact = True
        #: Whether the counters and the list agree: nobody allocated in between.
        self.consistent = True
        self._at: dict[int, int] = {}
        self._addresses: list[int] = []
        self._order: list[int] = []

    @classmethod
    def read(cls) -> Blocks:
        """The blocks now.

        Raises:
            UnreadableError: a pluggable allocator, which keeps no counters.
        """
        # Another thread may allocate between the list and the counters.
        for _ in range(3):
            blocks = cls()
            try:
                blocks._read()
            except RuntimeError as error:
                raise UnreadableError(
                    f"the allocator cannot be asked: {text.reason(error)}"
                ) from None
            if blocks.consistent:
                break
        return blocks

    def _read(self) -> None:
        for ordinal in torch_cuda.contexts():
            stats = torch_cuda.memory_stats(ordinal)
            self.allocated[ordinal] = stats["allocated_bytes"]["all"]["current"]
            self.reserved[ordinal] = stats["reserved_bytes"]["all"]["current"]
        if not self.allocated:
            return
        if torch_cuda.allocator_backend() != "native":
            self.exact = False
            return
        for segment in torch_cuda.memory_snapshot():
            self._add(segment)
        self._at = {block.address: i for i, block in enumerate(self.all)}
        self._order = sorted(range(len(self.all)), key=lambda i: self.all[i].address)
        self._addresses = [self.all[i].address for i in self._order]
        found = dict.fromkeys(self.allocated, 0)
        for block in self.all:
            found[block.device] = found.get(block.device, 0) + block.size
        self.consistent = found == self.allocated

    def _add(self, segment: Mapping[str, Any]) -> None:
        kept = Segment(
            device=segment["device"],
            total=segment["total_size"],
            private=tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0),
            expandable=bool(segment.get("is_expandable")),
            pending=False,
        )
        address = segment["address"]
        for block in segment["blocks"]:
            live = block["state"] == "active_allocated"
            kept.pending |= block["state"] not in ("active_allocated", "inactive")
            kept.layout.append((block["size"], address if live else None))
            if live:
                frames = tuple(block.get("frames") or ())
                size = block["size"]
                requested = block.get("requested_size", size)
                self.all.append(Block(segment["device"], address, requested, size, frames))
            address += block["size"]
        self.segments.append(kept)

    def finder(self, *, storages: bool = False) -> Callable[[Any], int | None]:
        """A function that tells which of `all` a tensor's storage lies in; None for no block.

        With ``storages`` it takes storages themselves.
        """
        address_of = storage_address()
        if storages:
            address_of = _data_ptr
        if not self.exact:
            return self._by_storage(address_of, storages)
        at, addresses, order, blocks = self._at, self._addresses, self._order, self.all

        def find(tensor: Any) -> int | None:
            address = address_of(tensor)
            found = at.get(address)
            if found is not None or not address:
                return found
            # Memory that was lent (DLPack, a pool of somebody's) may begin inside a block.
            place = bisect_right(addresses, address) - 1
            if place < 0:
                return None
            block = blocks[order[place]]
            return order[place] if address < block.address + block.size else None

        return find

    def _by_storage(
        self, address_of: Callable[[Any], int], storages: bool
    ) -> Callable[[Any], int | None]:
        def find(tensor: Any) -> int | None:
            if storages:
                device, size_of = tensor.device, tensor.nbytes
            else:
                plain = tensor_base()
                device = plain.device.__get__(tensor)
                size_of = lambda: plain.untyped_storage(tensor).nbytes()  # noqa: E731
            if device.type != "cuda":
                return None
            address = address_of(tensor)
            if not address:
                return None
            found = self._at.get(address)
            if found is None:
                size = size_of()
                found = self._at[address] = len(self.all)
                self.all.append(Block(device.index or 0, address, size, size))
            return found

        return find

    # --- what would be ---------------------------------------------------------------------------

    def without(self, gone: Iterable[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Allocated and reserved bytes by ordinal, were the blocks ``gone`` freed.

        ``gone`` are places in `all`. With an empty cache; reserved may be less still, since an
        expandable segment shrinks.
        """
        gone = set(gone)
        freed = {self.all[i].address for i in gone}
        allocated = dict(self.allocated)
        for i in gone:
            allocated[self.all[i].device] -= self.all[i].size
        reserved = dict(self.reserved)
        for segment in self.segments:
            reserved[segment.device] -= _released(segment, freed)
        return allocated, reserved

    def largest_free(self, device: int, gone: Collection[int] = ()) -> int:
        """The largest piece of what is reserved and unused, that anybody may use."""
        freed = {self.all[i].address for i in gone}
        largest = run = 0
        for segment in self.segments:
            if segment.device != device or segment.private:
                continue
            run = 0
            for size, address in segment.layout:
                run = run + size if address is None or address in freed else 0
                largest = max(largest, run)
        return largest


def _data_ptr(storage: Any) -> int:
    return int(storage.data_ptr())


def _released(segment: Segment, freed: Collection[int]) -> int:
    """What of a segment goes back to the device when the cache is emptied."""
    if segment.pending or segment.private:
        return 0
    if all(address is None or address in freed for _, address in segment.layout):
        return segment.total
    return 0
