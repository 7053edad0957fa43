"""What holds blocks that no variable references, by a scan of all objects."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from gpumagic.cells import tracebacks
from gpumagic.memory.allocator_blocks import Blocks
from gpumagic.memory.heap_scan import scanned, summed
from gpumagic.memory.snapshot import Block
from gpumagic.results import Site
from tests.support.allocator import empty


def test_sites_are_summed_by_device_and_place_largest_first() -> None:
    found = [
        (Block(0, 1, 10, 512), "a"),
        (Block(0, 2, 30, 512), "b"),
        (Block(1, 3, 5, 512), "a"),
        (Block(0, 4, 15, 512), "a"),
    ]
    assert summed(found) == {0: (Site("b", 30, 1), Site("a", 25, 2)), 1: (Site("a", 5, 1),)}
    assert summed([]) == {}


class Holder:
    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


@pytest.mark.usefixtures("all_objects")
def test_only_the_blocks_asked_for_by_their_nearest_referrer(torch: ModuleType) -> None:
    kept = [Holder(empty(torch, 1000)), Holder(empty(torch, 2000))]
    blocks = Blocks.read()
    place = next(i for i, block in enumerate(blocks.all) if block.requested == 2000)
    assert scanned(blocks, [place], tracebacks.no_cells) == {
        0: (Site("held by a Holder", 2000, 1),)
    }
    assert scanned(blocks, [], tracebacks.no_cells) == {}
    assert len(kept) == 2
