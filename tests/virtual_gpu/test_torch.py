"""Real torch on the virtual GPU of this process: time, memory, graphs, captures."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tests.support import captures

from . import SLEEP_CYCLES_PER_SECOND

pytestmark = pytest.mark.usefixtures("virtual_gpu", "clock")
cuda: Any = torch.cuda
GIB = 2**30


def sleep(seconds: float) -> None:
    cuda._sleep(int(seconds * SLEEP_CYCLES_PER_SECOND))


def timed_events() -> tuple[Any, Any]:
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()  # made at the first record
    end.record()
    cuda.synchronize()
    return start, end


def test_side_streams_overlap() -> None:
    """Two streams of 30 ms each are done after 30 ms; one stream with both after 60."""
    first, second = cuda.Stream(), cuda.Stream()
    cuda.synchronize()
    begin = time.perf_counter()
    for stream in (first, second):
        with cuda.stream(stream):
            sleep(0.03)
    cuda.synchronize()
    assert 0.03 <= time.perf_counter() - begin < 0.05
    begin = time.perf_counter()
    sleep(0.03)
    sleep(0.03)
    cuda.synchronize()
    assert 0.06 <= time.perf_counter() - begin < 0.08


def test_a_pair_on_one_stream_does_not_see_another() -> None:
    """Events of the current stream miss a side stream's work, until it waits for that stream."""
    start, end = timed_events()
    side = cuda.Stream()
    start.record()
    with cuda.stream(side):
        sleep(0.02)
    end.record()
    cuda.synchronize()
    assert start.elapsed_time(end) < 5
    start.record()
    with cuda.stream(side):
        sleep(0.02)
    cuda.current_stream().wait_stream(side)
    end.record()
    cuda.synchronize()
    assert start.elapsed_time(end) == pytest.approx(20, rel=0.05)


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


def test_larger_products_take_longer() -> None:
    """A product is timed by its size: 2 * 8192**3 operations at 400 TFLOP/s are 2.7 ms."""
    start, end = timed_events()
    matrix = torch.empty(8192, 8192, dtype=torch.float16, device="cuda")
    matrix @ matrix  # the first one makes cuBLAS's handle
    cuda.synchronize()
    start.record()
    matrix @ matrix
    end.record()
    cuda.synchronize()
    assert start.elapsed_time(end) == pytest.approx(2.75, rel=0.1)


def test_data_comes_back_as_it_went() -> None:
    """Host to device, device to device, peer to peer and back."""
    data = torch.arange(1_000_003, dtype=torch.float64)
    there = data.cuda()
    assert torch.equal(there.cpu(), data)
    assert torch.equal(there.clone().cpu(), data)
    assert torch.equal(there.to("cuda:1").cpu(), data)


def test_a_graph_is_captured_without_running_and_replayed_with_its_time() -> None:
    """Capturing takes none of the time; a replay takes all of it, with forks in parallel."""
    start, end = timed_events()
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
