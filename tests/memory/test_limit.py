"""A bound as if the device were smaller: beyond it torch raises its own out-of-memory error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import gpumagic
from gpumagic.errors import DeviceError
from gpumagic.memory.limit import LIMIT

MIB, GIB = 2**20, 2**30


@pytest.fixture
def torch(virtual_gpu: Any) -> Iterator[Any]:
    import torch

    torch.empty(1, device="cuda:0")
    yield torch
    LIMIT.lift()
    torch.cuda.empty_cache()


def fits(torch: Any, size: int, device: int = 0) -> bool:
    """Whether so many bytes more can be allocated."""
    try:
        torch.empty(size, dtype=torch.int8, device=f"cuda:{device}")
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def test_context_and_libraries_count(torch: Any) -> None:
    """The allocator has what is left of the limit, and no more."""
    torch.cuda.empty_cache()
    memory = gpumagic.gpumem().devices[0]
    assert memory.outside
    assert memory.reserved is not None
    LIMIT.set(4 * GIB)
    room = 4 * GIB - memory.outside - memory.reserved
    assert fits(torch, room - 4 * MIB)
    assert not fits(torch, room + 4 * MIB)
    LIMIT.lift()
    assert fits(torch, room + 4 * MIB)


def test_the_users_fraction_is_restored_and_never_raised(torch: Any) -> None:
    memory = gpumagic.gpumem().devices[0]
    assert memory.total is not None
    torch.cuda.set_per_process_memory_fraction(0.1, 0)
    LIMIT.set(memory.total // 2)
    assert not fits(torch, memory.total // 5)
    LIMIT.set(memory.total // 20)
    LIMIT.lift()
    assert fits(torch, memory.total // 12)
    assert not fits(torch, memory.total // 5)
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    assert fits(torch, memory.total // 5)


def test_a_device_that_comes_into_use_later(torch: Any) -> None:
    LIMIT.set(2 * GIB)
    torch.empty(1, device="cuda:1")
    LIMIT.update()
    assert torch.cuda.current_device() == 0
    assert not fits(torch, 2 * GIB, 1)
    LIMIT.lift()
    assert torch.cuda.current_device() == 0
    assert fits(torch, 2 * GIB, 1)


def test_a_limit_below_the_context_is_refused(torch: Any) -> None:
    with pytest.raises(
        DeviceError, match=r"less than this process holds outside torch's allocator"
    ):
        LIMIT.set(MIB)
    assert LIMIT.size is None
    assert fits(torch, GIB)
