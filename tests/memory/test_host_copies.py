"""Bytes in chunks of host memory."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.memory.host_copies import HostCopies


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("chunk", [7, 64, 1000])
def test_read_as_added(torch: Any, pinned: bool, chunk: int) -> None:
    sources = [torch.randint(0, 255, (n,), dtype=torch.uint8).cuda() for n in (1, 63, 64, 65, 200)]
    copies = HostCopies(sum(each.numel() for each in sources), pinned=pinned, chunk=chunk)
    steps: list[int] = []
    places = [copies.add(each, steps.append) for each in sources]
    torch.cuda.synchronize()
    assert sum(steps) == 393
    for place, source in zip(places, sources, strict=True):
        target = torch.zeros_like(source, device="cpu").cuda()
        copies.read(place, target, steps.append)
        torch.cuda.synchronize()
        assert torch.equal(target.cpu(), source.cpu())
    assert sum(steps) == 2 * 393
    assert copies.pinned is pinned


def test_pageable_where_no_memory_can_be_pinned(torch: Any, virtual_gpu: Any) -> None:
    virtual_gpu.fault("cudaHostAlloc", 2)
    source = torch.arange(100, dtype=torch.uint8).cuda()
    copies = HostCopies(1 << 30, pinned=True, chunk=1 << 29)
    place = copies.add(source, lambda size: None)
    target = torch.zeros(100, dtype=torch.uint8).cuda()
    copies.read(place, target, lambda size: None)
    assert not copies.pinned
    assert torch.equal(target.cpu(), source.cpu())
