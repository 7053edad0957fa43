"""Real torch on the virtual GPU of this process: time, memory, training, graphs."""

from __future__ import annotations

import time

import pytest
import torch

from . import SLEEP_CYCLES_PER_SECOND, World

pytestmark = pytest.mark.usefixtures("virtual_gpu")


def cycles(seconds: float) -> int:
    return int(seconds * SLEEP_CYCLES_PER_SECOND)


def timed_events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()  # made at the first record
    end.record()
    torch.cuda.synchronize()
    return start, end


def test_a_sleep_takes_its_time_on_the_device_and_none_on_the_host() -> None:
    """50 ms of `_sleep` read 50 ms by torch's own events, and the host goes on at once."""
    start, end = timed_events()
    torch.cuda._sleep(1)
    begin = time.perf_counter()
    start.record()
    torch.cuda._sleep(cycles(0.05))
    end.record()
    host = time.perf_counter() - begin
    assert not end.query()
    torch.cuda.synchronize()
    assert host < 0.001
    assert start.elapsed_time(end) == pytest.approx(50, rel=0.01)
    assert time.perf_counter() - begin >= 0.05
