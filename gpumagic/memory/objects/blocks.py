"""The allocator's live blocks, by address: what `walk` and `holders` attribute."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from gpumagic.cuda.pytorch import allocator, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.system import text

#: The index of a block in `Blocks.all`.
BlockIndex: TypeAlias = int


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
    """The allocated blocks of all devices in use."""

    def __init__(self) -> None:
        """Read them now.

        Raises:
            UnreadableError: torch uses another allocator than its native one.
        """
        if allocator.backend() != "native" or allocator.uncounted():
            why = "torch's allocator lists no blocks; only its native one does"
            raise UnreadableError(allocator.uncounted() or why)
        try:
            read = [
                Block(device, block["address"], block["requested_size"], block["size"])
                for device, block in allocator.allocated_blocks()
            ]
        except RuntimeError as error:
            shown = text.reason(error)
            raise UnreadableError(f"the allocator cannot be read: {shown}") from None
        #: In the order of addresses.
        self.all = sorted(read, key=attrgetter("address"))
        self._addresses = [block.address for block in self.all]
        #: By CUDA ordinal, the allocated bytes, as the allocator counts them, too.
        self.allocated = dict.fromkeys(torch_cuda.contexts(), 0)
        for block in self.all:
            self.allocated[block.device] += block.size

    def find(self, address: int) -> BlockIndex | None:
        """Return the block that an address lies in, or None."""
        index = bisect_right(self._addresses, address) - 1
        # Another library's pool, or DLPack, may begin inside.
        if index >= 0 and address < self.all[index].address + self.all[index].size:
            return index
        return None
