"""Queued samples: GPU time without launch overhead, or the reason why there is none."""

from __future__ import annotations

from typing import Any

import pytest

import gpumagic
from gpumagic.timing.event_timer import Reading
from gpumagic.timing.launch_overhead import Delay, QueuedSampling
from gpumagic.timing.run import Stopwatch
from tests.virtual_gpu import Scenario

MANY = {"precision": 0.05, "max_time": 0.3}


WAITING = {
    "a long kernel and its result": "sleep(2e-3); torch.cuda.synchronize()",
    "a value": "sleep(2e-3); x.sum().cpu()",
    "an event": "sleep(2e-3); e = torch.cuda.Event(); e.record(); e.synchronize()",
}


@pytest.mark.parametrize("code", WAITING.values(), ids=[*WAITING])
def test_a_cell_that_waits_has_no_queued_time(code: str, namespace: dict[str, Any]) -> None:
    timing = gpumagic.cudatime(code, queued=True, globals=namespace, **MANY)
    assert timing.queued is None
    assert "waits for the GPU inside" in timing.queued_note
    assert timing.bound is None
    assert timing.gpu_at_most
    assert "no queued GPU time: the code waits" in str(timing)


def test_more_than_the_queue_holds_has_no_queued_time(namespace: dict[str, Any]) -> None:
    code = "for _ in range(3000): x.add_(1)"
    timing = gpumagic.cudatime(code, queued=True, globals=namespace, precision=0.5, max_time=1.0)
    assert timing.queued is None
    assert "queues more than the GPU's queue holds" in timing.queued_note


def test_queued_time_has_no_launch_cost(namespace: dict[str, Any]) -> None:

    kernel = Scenario().kernel_time
    code = "for _ in range(20): x.add_(1)"
    timing = gpumagic.cudatime(code, queued=True, globals=namespace, **MANY)
    assert timing.queued.median == pytest.approx(20 * kernel, rel=0.02)
    assert timing.gpu.median > 3 * timing.queued.median
    assert "queued" in str(timing)


def test_queued_time_counts_side_streams(namespace: dict[str, Any]) -> None:
    """They are delayed too: work that began during the delay would not be counted."""
    code = "with torch.cuda.stream(side):\n    sleep(50e-6)\nx.add_(1)"
    timing = gpumagic.cudatime(code, queued=True, globals=namespace, **MANY)
    assert timing.queued.median >= 0.999 * 50e-6


def test_several_devices_cannot_be_delayed(namespace: dict[str, Any], gpu_work: Any) -> None:
    timing = gpumagic.cudatime(
        lambda: (gpu_work.sleep(1e-3), gpu_work.sleep(1e-3, 1)), queued=True, **MANY
    )
    assert timing.queued is None
    assert "several GPUs" in timing.queued_note
    assert timing.bound == "gpu"


def test_an_exception_in_a_queued_run_does_not_reach_the_user(gpu_work: Any) -> None:
    """The user asked for seven runs."""
    left = [gpu_work.torch.ones(3, device="cuda") for _ in range(8)]
    timing = gpumagic.cudatime(lambda: left.pop().add_(1), n=1, r=7)
    assert not left
    assert timing.repeat == 7
    assert "raised IndexError" in timing.queued_note


def test_a_graphs_replay(gpu_work: Any) -> None:
    torch = gpu_work.torch
    x = torch.ones(16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            x.add_(1)
    timing = gpumagic.cudatime(graph.replay, queued=True, **MANY)
    eager = gpumagic.cudatime(lambda: [x.add_(1) for _ in range(50)], queued=True, **MANY)
    assert timing.bound == "gpu"
    assert timing.gpu.best == pytest.approx(timing.queued.median, rel=0.05)
    assert timing.gpu.best == pytest.approx(eager.queued.median, rel=0.05)


def test_repeats_while_a_graph_is_captured(gpu_work: Any) -> None:
    torch = gpu_work.torch
    x = torch.ones(16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        timing = gpumagic.cudatime(lambda: x.add_(1), queued=True, cold=False, n=2, r=3)
    assert timing.gpu is None
    assert timing.queued is None
    assert "captured" in timing.gpu_note
    graph.replay()


def test_what_the_events_take_is_not_gpu_time_of_the_code(gpu_work: Any) -> None:
    """On hardware every stream has its events to process behind a delay: microseconds."""
    cuda, stopwatch = gpu_work.torch.cuda, Stopwatch()
    side, default = cuda.Stream(), cuda.default_stream()

    def delayed(empty: dict[int, float]) -> Reading:
        """1 ms on the default stream, while another one is the current one."""
        with cuda.stream(side):
            stopwatch.start(Delay(0, 20e-3, empty))
            with cuda.stream(default):
                gpu_work.sleep(1e-3)
            reading = stopwatch.stop().readings[0]
        assert reading.queued
        assert len(reading.streams) == 129  # all of torch's streams
        return reading

    assert delayed({}).seconds == pytest.approx(1e-3, rel=0.05)
    assert delayed({default.cuda_stream: 0.5e-3}).seconds == pytest.approx(1e-3, rel=0.05)
    assert (delayed({default.cuda_stream: 5e-3}).seconds or 0.0) < 0.1e-3


@pytest.mark.parametrize(
    ("kernel", "nothing"), [(5e-6, False), (2.6e-6, True), (2.5e-6, True), (40e-6, False)]
)
def test_one_small_kernel_is_gpu_work(kernel: float, nothing: bool) -> None:
    empty_time = 2.5e-6
    sampling = QueuedSampling(0, loop_time=1e-3, host_time=1e-5, loops=1, empty_time=empty_time)
    for _ in range(3):
        sampling.add(kernel, queued=True)
    assert sampling.no_gpu_work is nothing
