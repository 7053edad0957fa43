"""The allocator's blocks: which one is a tensor's, and what is left when some are freed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gpumagic.memory.allocator_blocks import Blocks


def tensor(torch: ModuleType, size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, device="cuda:0")


def test_without_all_blocks_nothing_is_allocated(torch: ModuleType) -> None:
    """A block is larger than what was asked for; all of it comes back."""
    kept = [tensor(torch, size) for size in (1, 1000, 3 << 20)]
    blocks = Blocks.read()
    assert blocks.allocated[0] == 512 + 1024 + (3 << 20)
    allocated, reserved = blocks.without(range(len(kept)))
    assert (allocated[0], reserved[0]) == (0, 0)


def test_where_a_tensor_lies(torch: ModuleType) -> None:
    """Also memory in the middle of a block; what was allocated later lies in none."""
    first = tensor(torch, 1000)
    blocks = Blocks.read()
    later = tensor(torch, 1000)  # in the same segment, behind the first
    assert 0 < later.data_ptr() - first.data_ptr() < 2 << 20
    find = blocks.finder()
    assert find(first) == 0
    lent = torch.utils.dlpack.from_dlpack(first[600:])
    assert lent.untyped_storage().data_ptr() == first.data_ptr() + 600
    assert find(lent) == 0
    assert find(later) is None
