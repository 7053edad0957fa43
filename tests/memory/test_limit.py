"""A bound as if the device were smaller: beyond it torch raises its own out-of-memory error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.memory import limit
from gpumagic.memory.limit import LIMIT
from tests.support.allocator import fits

MIB, GIB = 2**20, 2**30


@pytest.fixture
def torch(virtual_gpu: Any) -> Iterator[Any]:
    import torch

    torch.empty(1, device="cuda:0")
    yield torch
    LIMIT.lift()
    torch.cuda.empty_cache()


def test_the_users_fraction_is_restored_and_never_raised(torch: Any) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.1, 0)
    LIMIT.set(total // 2)
    assert not fits(torch, total // 5)
    LIMIT.set(total // 20)
    LIMIT.lift()
    assert fits(torch, total // 12)
    assert not fits(torch, total // 5)
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    assert fits(torch, total // 5)


def test_devices_that_come_into_use_later(torch: Any) -> None:
    contexts = torch_cuda.contexts()
    LIMIT.set(2 * GIB)
    assert torch_cuda.contexts() == contexts, "no context is created for it"
    assert torch.cuda.current_device() == 0
    torch.empty(1, device="cuda:1")
    LIMIT.apply()
    assert not fits(torch, 2 * GIB + MIB, 1)
    LIMIT.lift()
    assert torch.cuda.current_device() == 0
    assert fits(torch, 2 * GIB + MIB, 1)


def test_a_fraction_that_is_set_while_limited_stays(torch: Any) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    LIMIT.set(4 * GIB)
    torch.cuda.set_per_process_memory_fraction(GIB / total, 0)
    LIMIT.lift()
    assert not fits(torch, 2 * GIB)
    torch.cuda.set_per_process_memory_fraction(1.0, 0)


def test_a_device_that_cannot_be_bounded_leaves_none_bounded(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = limit.set_fraction

    def fails_for_the_second(ordinal: int, fraction: float) -> None:
        if ordinal == 1 and fraction < 1:
            raise DeviceError("no")
        bound(ordinal, fraction)

    torch.empty(1, device="cuda:1")
    monkeypatch.setattr(limit, "set_fraction", fails_for_the_second)
    with pytest.raises(DeviceError):
        LIMIT.set(GIB)
    assert LIMIT.size is None
    assert fits(torch, 2 * GIB)


def test_a_process_that_is_over_the_limit_already(torch: Any) -> None:
    held = torch.empty(3 * GIB, dtype=torch.int8, device="cuda:0")
    LIMIT.set(2 * GIB)
    assert LIMIT.state().notes[0].startswith("cuda:0: torch has reserved 3.")
    del held
    torch.cuda.empty_cache()
    assert "has reserved" not in str(LIMIT.state().notes)


def test_a_part_of_each_device(torch: Any) -> None:
    totals = [torch.cuda.get_device_properties(each).total_memory for each in (0, 1)]
    torch.empty(1, device="cuda:1")
    LIMIT.set(0.25)
    assert LIMIT.limits().limits == "25 % of each GPU"
    for ordinal, total in enumerate(totals):
        assert not fits(torch, total // 4 + 2 * MIB, ordinal)
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved(ordinal)  # what tests before may still hold
        assert fits(torch, total // 4 - reserved - 4 * MIB, ordinal)


def test_the_users_fraction_is_a_limit_that_is_said(torch: Any) -> None:
    assert str(LIMIT.state()).startswith("No limit: torch may use the whole device")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.5, 0)
    assert LIMIT.state().devices == {0: total // 2}
    LIMIT.set(8 * GIB)
    assert str(LIMIT.state()).startswith("torch may use at most 8.00 GiB of each GPU.")
    torch.cuda.set_per_process_memory_fraction(0.25, 0)
    said = str(LIMIT.state())
    assert "of each GPU" not in said, "it is not what holds on cuda:0"
    assert " of cuda:0" in said
    assert "by torch's memory fraction" in said
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    assert LIMIT.state().devices.get(0) is None
