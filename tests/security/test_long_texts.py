"""Texts from outside cost little, however long they are and whatever is in them."""

from __future__ import annotations

import pytest

from gpumagic.doctor import failed_cell
from gpumagic.memory import oom


@pytest.mark.parametrize(
    "unit", ["CUDA error: driver mismatc ", "driver", "1", "CUDA error: out of memory ", "\n"]
)
def test_a_long_message_is_explained_at_once(unit: str) -> None:
    """Not in hours, which the limit of a test's time would end."""
    failed_cell.explain(RuntimeError("CUDA error: " + unit * (500_000 // len(unit))))
    text = unit * (500_000 // len(unit))
    for pattern in (oom._REQUESTED, oom._UNUSED, oom._ALLOCATED):
        assert oom._size(pattern, text) is None
    oom._device(text)


@pytest.mark.parametrize("number", ["1.2.3", "9" * 400, "9" * 5000, ".", "1."])
def test_a_size_that_is_none(number: str) -> None:
    text = f"Tried to allocate {number} GiB. GPU {number} has"
    assert oom._size(oom._REQUESTED, text) is None
    oom._device(text)
