"""What our questions to the driver cost, and what a GPU's marks and queues can do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from gpumagic.cuda.pytorch import cuda_events, streams, torch_cuda
from gpumagic.timing.queued_runs import launch_delay
from tests.hardware.record import Figure

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch", "warmed")]


def test_what_two_events_tell_apart(torch: Any, figure: Figure) -> None:
    """Pairs of events with nothing in between; the same with all of torch's streams marked."""
    stream, used = torch_cuda.current_stream(0), _with_all_pools(torch)
    pairs, every = [], []
    for _ in range(10):  # a queue holds some 1,000 events
        launch_delay(0, 20e-3)
        events = [cuda_events.timing_event(stream) for _ in range(200)]
        torch.cuda.synchronize()
        couples = zip(events[::2], events[1::2], strict=True)
        pairs += [first.elapsed_time(second) / 1e3 for first, second in couples]
    for _ in range(10):
        launch_delay(0, 20e-3)
        start = cuda_events.timing_event(stream)
        for other in used:
            start.wait(other)
        ends = [cuda_events.timing_event(other) for other in used]
        torch.cuda.synchronize()
        every.append(max(start.elapsed_time(end) for end in ends) / 1e3)
    figure("1,000 pairs of events, in seconds: least, median, step", _summary(pairs))
    figure("the same with every stream marked: least, median, step", _summary(every))
    step = _summary(pairs)[2]
    # A margin: times come as milliseconds in single precision.
    assert step is None or step <= cuda_events.RESOLUTION * 1.01


def _with_all_pools(torch: Any) -> list[Any]:
    """All of torch's streams: one of each pool is taken, so that all count as handed out."""
    for priority in (0, -1, -2, -3):
        torch.cuda.Stream(0, priority=priority)
    return streams.of(0).used()


def _summary(values: Sequence[float]) -> tuple[float, float, float | None]:
    """The least, the median, and the smallest difference between any two that differ."""
    steps = [b - a for a, b in pairwise(sorted(values)) if b - a > 1e-10]
    return min(values), statistics.median(values), min(steps, default=None)


def test_how_many_launches_a_queue_holds(torch: Any, figure: Figure) -> None:
    """Behind a delay of 1 s, the first launch that has to wait."""
    x = torch.ones(1, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    launch_delay(0, 1.0)
    waited = None
    for launch in range(1, 5001):
        begin = time.perf_counter()
        x.add_(1)
        if time.perf_counter() - begin > 50e-3:
            waited = launch
            break
    torch.cuda.synchronize()
    figure("launches until the host has to wait (None: more than 5,000)", waited)
    assert waited is None or waited > 600
