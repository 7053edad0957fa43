"""Repeated runs: when they stop, what limits the code, cold caches, compilation, side effects."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gpumagic
from gpumagic.errors import DeviceError
from gpumagic.timing import event_timer
from tests.support.captures import capture_elsewhere
from tests.support.shells import Ran
from tests.timing import bottleneck_cells as cells
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND


def test_stops_when_the_median_is_known(gpu_work: Any) -> None:
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(1e-3), max_time=9)
    assert timing.stopped_by == "precision"
    assert timing.precision <= 0.01
    assert timing.repeat >= 10
    assert timing.loops == 5
    assert "as precise as requested" in str(timing)


def test_stops_when_the_time_is_over(gpu_work: Any) -> None:
    durations = iter([1e-3, 3e-3] * 10_000)
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(next(durations)), max_time=0.3)
    assert timing.stopped_by == "max-time"
    assert timing.precision > 0.01
    assert "the time limit was reached" in str(timing)
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(0.2), max_time=0.1)
    assert timing.repeat == 1
    assert timing.precision is None
    assert "too few" in str(timing)


@pytest.fixture
def namespace(gpu_work: Any) -> dict[str, Any]:
    return cells.namespace(SLEEP_CYCLES_PER_SECOND)


@pytest.mark.parametrize("name", cells.ALL)
def test_what_limits_a_cell(name: str, namespace: dict[str, Any]) -> None:
    code, limit = cells.ALL[name]
    timing = gpumagic.cudatime(code, globals=namespace, max_time=0.3)
    assert timing.limited_by == limit, timing
    assert not timing.gpu_at_most
    assert {"gpu": "GPU-bound", "host": "host-bound"}[limit] in str(timing)


def test_an_exception_of_a_queued_run_is_not_raised(namespace: dict[str, Any]) -> None:
    namespace["left"] = [*range(1 + 6)]
    timing = gpumagic.cudatime("left.pop(); x.add_(1)", globals=namespace, n=1, r=6, w=1)
    assert (timing.repeat, timing.limited_by) == (6, None)


def test_given_numbers_are_exact(gpu_work: Any) -> None:
    """Without a warm-up no run tells what limits the code, unless the GPU outlasts the host."""
    runs, x = list[Any](), gpu_work.torch.ones(9, device="cuda")
    timing = gpumagic.cudatime(lambda: runs.append(x.add_(1)), n=3, r=4, w=0)
    assert (len(runs), timing.limited_by) == (12, None)
    for warmup in (0, 3):  # also where the number of loops is not given
        runs.clear()
        timing = gpumagic.cudatime(lambda: runs.append(gpu_work.sleep(1e-3)), r=8, w=warmup)
        assert (timing.repeat, timing.warmup, timing.queued) == (8, warmup, 0)
        assert len(runs) == timing.loops * 8 + warmup
    assert (timing.loops, timing.limited_by, timing.stopped_by) == (5, "gpu", None)
    assert timing.precision is not None
    assert all(0.98e-3 <= value <= 1.02e-3 for value in timing.gpu.all)


@pytest.mark.free
def test_no_repeat_is_left_out(gpu_work: Any) -> None:
    seconds = iter([1e-3] * 9 + [20e-3])
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(next(seconds)), n=1, r=10, w=0)
    assert len(timing.gpu.all) == 10
    assert timing.gpu.worst == pytest.approx(20e-3, rel=0.02)
    assert timing.gpu.median == pytest.approx(1e-3, rel=0.02)


def test_cold_empties_the_cache(gpu_work: Any) -> None:
    """With memory of its own: the user's peak stays, and so does what torch has reserved."""
    cuda = gpu_work.torch.cuda
    gpu_work.torch.empty(9, device="cuda")
    # What is used for the first time takes memory that stays.
    gpumagic.cudatime(lambda: gpu_work.sleep(1e-3), r=1, w=0, cold=True)
    cuda.reset_peak_memory_stats()
    before = [cuda.max_memory_allocated(), cuda.memory_reserved(), *cuda.mem_get_info()]
    seen = []

    def code() -> None:
        seen.append(before[2] - cuda.mem_get_info()[0])
        gpu_work.sleep(1e-3)

    timing = gpumagic.cudatime(code, r=5, w=0, cold=True)
    assert timing.loops == 1
    assert {*seen} == {2 * 50 * 2**20}, "what is written is twice as large as the cache"
    after = [cuda.max_memory_allocated(), cuda.memory_reserved(), *cuda.mem_get_info()]
    assert after == before
    assert "L2 cache flushed before each loop: cuda:0 50 MiB" in str(timing)
    # It is not in the times: it takes a third of this, and a T4's calls some hundredths.
    assert timing.gpu.best == pytest.approx(1e-3, rel=0.1)


def test_cold_without_effect(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = gpu_work.torch
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x + 1
        with pytest.raises(DeviceError, match="graph is being captured"):
            gpumagic.cudatime(lambda: None, n=1, r=1, w=0, cold=True)
    monkeypatch.setattr("gpumagic.cuda.pytorch.torch_cuda.contexts", tuple)  # as before CUDA starts
    timing = gpumagic.cudatime(lambda: None, n=1, r=1, w=0, cold=True)
    assert "--cold had no effect: no GPU is in use" in str(timing)
    assert "flushed" not in str(timing)


def test_setup_of_the_function() -> None:
    got: list[Any] = []
    gpumagic.cudatime(lambda: got.append(1), setup=lambda: got.append(0), n=2, r=2, w=0)
    assert got == [0, 1, 1] * 2
    with pytest.raises(TypeError, match="source text too"):
        gpumagic.cudatime("1", setup=lambda: None, n=1)


@pytest.mark.parametrize("options", [{"n": 2, "r": 3, "w": 1}, {"n": 2, "r": 3}, {"max_time": 1}])
def test_compilation_is_not_counted(gpu_work: Any, options: Any) -> None:
    torch = gpu_work.torch
    x = torch.ones(16, device="cuda")

    def backend(graph: Any, inputs: Any) -> Any:
        time.sleep(0.1)  # by the virtual clock compiling takes this, and nothing else
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(lambda x: x * 2 + 1, backend=backend)
    timing = gpumagic.cudatime(lambda: compiled(x), **options)
    assert timing.wall.worst < 0.05
    assert "torch.compile compiled in the first run, not counted: 0.1" in str(timing)
    assert "TORCH_LOGS=recompiles,graph_breaks" in str(timing)
    assert timing.repeat == options.get("r", timing.repeat)
    assert "compiled" not in str(gpumagic.cudatime(lambda: compiled(x), **options))


def test_a_step_that_compiles_each_time_runs_as_often_as_was_asked(gpu_work: Any) -> None:
    """A training step trains so often; that it has compiled is said, and counted."""
    torch, runs = gpu_work.torch, list[Any]()
    x = torch.ones(16, device="cuda")

    def step() -> None:
        torch.compiler.reset()
        runs.append(torch.compile(lambda x: x * 2, backend="eager")(x))

    timing = gpumagic.cudatime(step, n=1, r=3, w=0)
    assert len(runs) == 3
    said = "torch.compile compiled 3 functions during the repeats; their times include compiling"
    assert said in str(timing)
    assert "not counted" not in str(timing)


def test_no_more_loops_of_warm_up_than_are_timed() -> None:
    runs: list[int] = []
    timing = gpumagic.cudatime(lambda: runs.append(1), n=2, r=3)
    assert (timing.warmup, len(runs)) == (6, 12 + timing.queued)


def test_a_repeat_without_a_reading(gpu_work: Any) -> None:
    """Another thread captures a graph meanwhile: there is no GPU time, and it is said why."""
    left, captured = iter(range(3)), capture_elsewhere(gpu_work.torch)

    def code() -> None:
        if next(left) == 2:
            captured.__enter__()

    timing = gpumagic.cudatime(code, n=1, r=3, w=0)
    captured.__exit__(None, None, None)
    assert (timing.gpu, timing.limited_by, timing.repeat) == (None, None, 3)
    assert "a CUDA graph is being captured" in str(timing)


@pytest.fixture(autouse=True)
def _collecting() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("point", ["start", "read"])
def test_an_interrupt_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setattr(event_timer, point, interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpumagic.cudatime("1 + 1", n=1, r=1, w=0)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    gpumagic.cudatime("1 + 1", n=1, r=1, w=0)
    assert not gc.isenabled()


def test_a_cold_cell_that_fails_keeps_no_memory(ip: Any, run_cell: Callable[..., Ran]) -> None:
    import torch

    ip.user_ns["x"] = torch.empty(1, device="cuda")
    before = torch.cuda.mem_get_info()
    ran = run_cell("%%cudatime -q --cold -r 3\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert torch.cuda.mem_get_info() == before
