"""A bound as if the device were smaller: beyond it torch raises its own out-of-memory error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import gpumagic
from gpumagic.cuda import failure, torch_cuda
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


def test_without_a_gpu(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "why_no_gpu", lambda: "there is no NVIDIA driver")
    with pytest.raises(DeviceError, match="no limit was set: there is no NVIDIA driver"):
        LIMIT.set(GIB)
    assert LIMIT.size is None


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


def test_devices_that_come_into_use_later(torch: Any) -> None:
    contexts = torch_cuda.contexts()
    LIMIT.set(2 * GIB)
    assert torch_cuda.contexts() == contexts, "no context is created for it"
    assert torch.cuda.current_device() == 0
    if torch.__version__ >= (2, 10):
        unused = next(i for i in range(torch.cuda.device_count()) if i not in contexts)
        assert not fits(torch, 2 * GIB + MIB, unused), "from the first allocation on"
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


def test_a_fraction_that_is_set_while_limited_stays(torch: Any) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    LIMIT.set(4 * GIB)
    torch.cuda.set_per_process_memory_fraction(GIB / total, 0)
    assert not LIMIT.binds(0)
    LIMIT.lift()
    assert not fits(torch, 2 * GIB)
    LIMIT.set(4 * GIB)
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    LIMIT.update()
    assert LIMIT.binds(0)
    assert not fits(torch, 4 * GIB)
    LIMIT.lift()
    assert fits(torch, 4 * GIB)


def test_the_state_names_the_users_own_fraction(torch: Any) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(GIB / total, 0)
    try:
        alone = str(LIMIT.state())
        assert "the whole device" not in alone
        assert "cuda:0: torch may reserve 1.00 GiB, by the notebook's own" in alone
        LIMIT.set(4 * GIB)
        (note,) = LIMIT.state().notes
        assert "may reserve 1.00 GiB" in note
        assert LIMIT.notes()[1:] == (note,)
    finally:
        LIMIT.lift()
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    assert LIMIT.state().notes == ()


def test_a_process_that_is_over_the_limit_already(torch: Any) -> None:
    held = torch.empty(3 * GIB, dtype=torch.int8, device="cuda:0")
    LIMIT.set(2 * GIB)
    (note,) = LIMIT.state().notes
    assert "cuda:0: this process holds 3." in note
    assert "more than the limit" in note
    del held
    torch.cuda.empty_cache()
    assert LIMIT.state().notes == ()
