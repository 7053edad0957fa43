"""The check that a test leaves no memory reserved."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.support.allocator import MIB, clear, empty, torch

__all__ = ["torch"]


def test_memory_that_a_test_has_left_is_reported_once(torch: ModuleType) -> None:
    left = [empty(torch, MIB), torch.nn.Parameter(torch.ones(3, device="cuda:1"))]
    with pytest.raises(AssertionError) as told:
        clear(torch)
    assert "memory of an earlier test is still reserved" in str(told.value)
    assert f"({MIB},) on cuda:0" in str(told.value)
    assert "(3,) on cuda:1" in str(told.value)
    assert len(left) == 2
    clear(torch)
