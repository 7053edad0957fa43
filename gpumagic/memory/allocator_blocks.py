"""The allocator's blocks: what is allocated, where, and what is left when some of it is freed.

Other allocators than torch's native one list no blocks: the tensors' storages replace them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.storages import storage_address, tensor_base
from gpumagic.errors import DeviceError
from gpumagic.memory.snapshot import Block, Segment, read_segments
from gpumagic.system import text


class UnreadableError(DeviceError):
    """The allocator has no counters that can be read."""


class Blocks:
    """All allocated blocks of the devices in use, and which one a tensor's storage is in."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self.segments: tuple[Segment, ...] = ()
        #: By CUDA ordinal, allocated and reserved bytes by the allocator's counters.
        self.allocated: dict[int, int] = {}
        self.reserved: dict[int, int] = {}
        #: False for an allocator that does not list its blocks.
        self.exact = True
        #: Whether the counters and the list agree: no thread allocated in between.
        self.consistent = True
        self._at: dict[int, int] = {}
        self._addresses: list[int] = []
        self._order: list[int] = []

    @classmethod
    def read(cls) -> Blocks:
        """Return the blocks now.

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
                    f"the allocator's counters cannot be read: {text.reason(error)}"
                ) from None
            if blocks.consistent:
                break
        return blocks

    def _read(self) -> None:
        for ordinal in torch_cuda.contexts():
            self.allocated[ordinal], self.reserved[ordinal] = torch_cuda.memory_held(ordinal)
        if not self.allocated:
            return
        if torch_cuda.allocator_backend() != "native":
            self.exact = False
            return
        self.segments = read_segments()
        self.all = [b for segment in self.segments for b in segment.blocks if b.allocated]
        self._at = {block.address: i for i, block in enumerate(self.all)}
        self._order = sorted(range(len(self.all)), key=lambda i: self.all[i].address)
        self._addresses = [self.all[i].address for i in self._order]
        found = dict.fromkeys(self.allocated, 0)
        for block in self.all:
            found[block.device] = found.get(block.device, 0) + block.size
        self.consistent = found == self.allocated

    def finder(self, *, storages: bool = False) -> Callable[[Any], int | None]:
        """Return a function that returns the place in `all` of a tensor's block, or None.

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
            # Memory of another library (DLPack, its own pool) may begin inside a block.
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

    # --- after freeing some ----------------------------------------------------------------------

    def without(self, gone: Iterable[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Return allocated and reserved bytes by ordinal with the blocks ``gone`` freed.

        ``gone`` are places in `all`. With an empty cache; reserved may be even less, since an
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
        """Return the size of the largest free piece of the segments that any tensor may use.

        With the blocks ``gone`` freed and the cache emptied: not of segments that are released.
        """
        freed = {self.all[i].address for i in gone}
        largest = run = 0
        for segment in self.segments:
            if segment.device != device or segment.private:
                continue
            if freed and _released(segment, freed):
                continue
            run = 0
            for block in segment.blocks:
                run = run + block.size if not block.allocated or block.address in freed else 0
                largest = max(largest, run)
        return largest


def _data_ptr(storage: Any) -> int:
    try:
        return int(storage.data_ptr())
    except RuntimeError:  # a parked one has no memory
        return 0


def _released(segment: Segment, freed: Collection[int]) -> int:
    """Return the bytes of a segment that go back to the device when the cache is emptied."""
    if segment.pending or segment.private:
        return 0
    if all(not block.allocated or block.address in freed for block in segment.blocks):
        return segment.size
    return 0
