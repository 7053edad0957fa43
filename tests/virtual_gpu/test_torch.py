"""Real torch on the virtual GPU of this process: data, memory, captures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support import captures

pytestmark = pytest.mark.usefixtures("virtual_gpu")
cuda: Any = torch.cuda
GIB = 2**30


def test_data_comes_back_as_it_went() -> None:
    """Host to device, device to device, peer to peer and back."""
    data = torch.arange(1_000_003, dtype=torch.float64)
    there = data.cuda()
    assert torch.equal(there.cpu(), data)
    assert torch.equal(there.clone().cpu(), data)
    assert torch.equal(there.to("cuda:1").cpu(), data)


def test_large_blocks_cost_nothing_until_written() -> None:
    """Zeros and a clone of 8 GiB commit no host memory."""
    first = torch.zeros(8 * GIB, dtype=torch.uint8, device="cuda")
    second = first.clone()
    assert second[-1].item() == 0
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        resident = int(statm.read().split()[1]) * 4096
    assert resident < 4 * GIB
    del first, second
    cuda.empty_cache()


@pytest.mark.parametrize("name", captures.ENDS)
def test_what_ends_another_threads_capture(name: str) -> None:
    assert captures.ends(torch, name) == captures.ENDS[name]
