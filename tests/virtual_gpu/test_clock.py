"""The virtual clock, and what a launch costs: by them a test measures the same on every machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from . import World, virtual_clock

cuda: Any = torch.cuda
LAUNCH, COUNT = 20e-6, 200


@pytest.fixture
def ones(virtual_gpu: World) -> Iterator[Any]:
    made: Any = torch.ones(16, device="cuda")
    made.add_(1)
    cuda.synchronize()
    virtual_gpu.set_launch_cost(LAUNCH)
    yield made
    cuda.synchronize()


def launches(ones: Any) -> float:
    begin = time.perf_counter()
    for _ in range(COUNT):
        ones.add_(1)
    return time.perf_counter() - begin


def test_a_launch_takes_what_the_world_says(ones: Any, virtual_gpu: World) -> None:
    """By the real clock that or more, by the virtual one that."""
    assert launches(ones) >= COUNT * LAUNCH
    with virtual_clock():
        assert launches(ones) == pytest.approx(COUNT * LAUNCH, rel=0.1)
        virtual_gpu.set_launch_cost(0)
        assert launches(ones) < COUNT * LAUNCH / 10


def test_it_never_goes_back() -> None:
    """What it is ahead by, when it is turned off, is waited for."""
    before = time.perf_counter()
    with virtual_clock():
        begin = time.perf_counter()
        time.sleep(0.05)
        end = time.perf_counter()
    assert before <= begin
    assert end - begin >= 0.05
    assert time.perf_counter() >= end
