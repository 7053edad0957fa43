"""The allocator's live blocks, by address: what `walk` and `holders` attribute."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from gpumagic.cuda import torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.system import text


class UnreadableError(DeviceError):
    """The allocator lists no blocks."""


class Block(NamedTuple):
    """An allocation. Bytes."""

    device: int
    address: int
    #: As it was requested, and as the allocator has rounded it.
    requested: int
    size: int


class Blocks:
    """The allocated blocks of all devices in use, in the order of addresses."""

    def __init__(self) -> None:
        """Read them now.

        Raises:
            UnreadableError: torch uses another allocator than its native one.
        """
        if torch_cuda.allocator_backend() != "native" or torch_cuda.uncounted():
            why = "torch's allocator lists no blocks; only its native one does"
            raise UnreadableError(torch_cuda.uncounted() or why)
        #: Whether the list and the counters agree: no thread has allocated in between.
        self.consistent = False
        for _ in range(3):
            try:
                self._read()
            except RuntimeError as error:
                shown = text.reason(error)
                raise UnreadableError(f"the allocator cannot be read: {shown}") from None
            if self.consistent:
                break
        self.all.sort(key=lambda block: block.address)
        self._addresses = [block.address for block in self.all]

    def _read(self) -> None:
        self.all: list[Block] = []
        #: By CUDA ordinal, the allocated bytes by the allocator's counters.
        self.allocated: dict[int, int] = {}
        for device, block in torch_cuda.allocated_blocks():
            size = block["size"]
            requested = block.get("requested_size", size)
            self.all.append(Block(device, block["address"], requested, size))
        for ordinal in torch_cuda.contexts():
            self.allocated[ordinal], _ = torch_cuda.memory_held(ordinal)
        found = dict.fromkeys(self.allocated, 0)
        for each in self.all:
            found[each.device] = found.get(each.device, 0) + each.size
        self.consistent = found == self.allocated

    def find(self, address: int) -> int | None:
        """Return the place in `all` of the block that an address lies in, or None."""
        place = bisect_right(self._addresses, address) - 1
        # Another library's pool, or DLPack, may begin inside.
        if place >= 0 and address < self.all[place].address + self.all[place].size:
            return place
        return None
