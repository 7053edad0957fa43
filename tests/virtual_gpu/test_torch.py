"""Real torch on the virtual GPU of this process: a full queue, graphs, captures."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tests.support import captures

from . import SLEEP_CYCLES_PER_SECOND

pytestmark = pytest.mark.usefixtures("virtual_gpu", "clock")
cuda: Any = torch.cuda


def sleep(seconds: float) -> None:
    cuda._sleep(int(seconds * SLEEP_CYCLES_PER_SECOND))


def test_a_full_queue_makes_the_host_wait() -> None:
    """A stream holds 1024 launches; one more waits until one has ended, as on hardware."""
    cuda.synchronize()
    sleep(0.05)
    begin = time.perf_counter()
    for _ in range(1000):
        sleep(0)
    assert time.perf_counter() - begin < 0.03
    for _ in range(50):
        sleep(0)
    assert time.perf_counter() - begin > 0.03
    cuda.synchronize()


def test_a_graph_is_captured_without_running_and_replayed_with_its_time() -> None:
    """Capturing takes none of the time; a replay takes all of it, with forks in parallel."""
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    source = torch.arange(5.0).cuda()
    target = torch.empty(5, device="cuda")
    side = cuda.Stream()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        target.copy_(source)
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            sleep(0.5)
        sleep(0.3)
        cuda.current_stream().wait_stream(side)
    assert cuda.current_stream().query()
    assert side.query()
    start.record()
    graph.replay()
    end.record()
    cuda.synchronize()
    assert start.elapsed_time(end) == pytest.approx(500, rel=0.01)
    assert torch.equal(target.cpu(), torch.arange(5.0))


@pytest.mark.skipif(
    torch.__version__.startswith("2.6."), reason="torch 2.6 fails after a capture that was ended"
)
@pytest.mark.parametrize("name", captures.ENDS)
def test_what_ends_another_threads_capture(name: str) -> None:
    assert captures.ends(torch, name) == captures.ENDS[name]
