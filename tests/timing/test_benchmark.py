"""Repeated runs: when they stop, cold caches, compilation, side effects."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import gpumagic
from gpumagic.timing import benchmark
from gpumagic.timing.benchmark import _RunScope
from tests.support.shells import Ran


def test_stops_when_the_median_is_known(gpu_work: Any) -> None:
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(1e-3), precision=0.05)
    assert timing.quality.stopped_by == "precision"
    assert timing.quality.precision <= 0.05
    assert timing.repeat >= 10
    assert timing.loops == 1
    assert "as precise as requested" in str(timing)


def test_stops_when_the_time_is_over(gpu_work: Any) -> None:
    durations = iter([1e-3, 3e-3] * 10_000)
    begun = time.perf_counter()
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(next(durations)), max_time=0.3)
    assert time.perf_counter() - begun < 10, "all the runs would take 40 s"
    assert timing.quality.stopped_by == "max-time"
    assert timing.quality.precision > 0.01
    assert "the time limit was reached" in str(timing)


def test_one_slow_run_is_enough_for_no_time(gpu_work: Any) -> None:
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(0.2), max_time=0.1)
    assert timing.repeat == 1
    assert timing.quality.precision is None
    assert "too few" in str(timing)


def test_small_code_runs_many_loops(gpu_work: Any) -> None:
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(20e-6), precision=0.05)
    assert timing.loops >= 10
    assert timing.gpu.median == pytest.approx(20e-6, rel=0.05)


def test_given_numbers_have_no_stopping_rule(gpu_work: Any) -> None:
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(1e-3), n=2, r=8)
    assert timing.quality.stopped_by is None
    assert (timing.loops, timing.repeat) == (2, 8)
    assert timing.quality.precision is not None
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(1e-3), n=2, precision=0.1)
    assert timing.loops == 2
    assert timing.quality.stopped_by == "precision"


def test_drift_and_outliers_are_flagged_and_counted(gpu_work: Any) -> None:
    durations = iter([1e-3, *[1e-3] * 20, *[2e-3] * 19, 20e-3])
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(next(durations)), n=1, r=40, w=1)
    assert timing.quality.drift == pytest.approx(1.0, abs=0.2)
    assert timing.gpu.worst >= 20e-3
    assert any(value >= 20e-3 for value in timing.quality.outliers)
    assert len(timing.gpu.all) == 40
    assert "drift: the second half" in str(timing)
    assert "of 40 repeats, up to" in str(timing)
    assert "all are counted" in str(timing)


def test_throttled_clocks_are_flagged(gpu_work: Any, virtual_gpu: Any) -> None:
    code = {"n": 1, "r": 2, "w": 1}
    assert gpumagic.cudatime(lambda: gpu_work.sleep(1e-3), **code).quality.throttled == {}
    virtual_gpu.set_gpu(0, throttle_reasons=0x04 | 0x40 | 0x01)
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(1e-3), **code)
    assert timing.quality.throttled == {0: ("power limit", "too hot (hardware)")}
    assert "cuda:0's clock was throttled: power limit, too hot" in str(timing)
    virtual_gpu.set_gpu(0, throttle_reasons=0x01)  # idle is no trouble
    assert gpumagic.cudatime(lambda: gpu_work.sleep(1e-3), **code).quality.throttled == {}
    virtual_gpu.set_gpu(0, unsupported={"throttle_reasons"})
    assert gpumagic.cudatime(lambda: gpu_work.sleep(1e-3), **code).quality.throttled == {}


def test_cold_empties_the_cache(gpu_work: Any, virtual_gpu: Any) -> None:
    def writes(**options: Any) -> tuple[int, Any]:
        """How often a timing fills memory."""
        before = virtual_gpu.calls("cuMemsetD8Async")
        timing = gpumagic.cudatime(lambda: gpu_work.sleep(1e-3), n=1, r=5, w=0, **options)
        return virtual_gpu.calls("cuMemsetD8Async") - before, timing

    warm, _ = writes()
    cold, timing = writes(cold=True)
    assert timing.loops == 1
    assert timing.quality.flushed[0] == 50 * 2**20
    assert cold >= warm + 5
    assert "L2 cache flushed before each loop: cuda:0 50.0 MiB" in str(timing)
    # It is not in the times.
    assert timing.gpu.best == pytest.approx(1e-3, rel=0.03)
    with pytest.raises(gpumagic.SpecError, match="leave -n 5"):
        gpumagic.cudatime(lambda: None, cold=True, n=5)


def test_contradictions_are_refused() -> None:
    with pytest.raises(gpumagic.SpecError, match="leave nothing for --precision"):
        gpumagic.cudatime(lambda: None, r=5, precision=0.01)
    with pytest.raises(gpumagic.SpecError, match="above 0"):
        gpumagic.cudatime(lambda: None, max_time=0)


def test_setup_of_the_function() -> None:
    got: list[Any] = []
    gpumagic.cudatime("got.append(k)", setup="k = 3", n=2, r=2, w=0, globals={"got": got})
    assert got == [3] * 4
    gpumagic.cudatime(lambda: got.append(1), setup=lambda: got.append(0), n=2, r=2, w=0)
    assert got[4:] == [0, 1, 1] * 2
    with pytest.raises(TypeError, match="source text too"):
        gpumagic.cudatime("1", setup=lambda: None, n=1)


def test_compilation_is_shown_separately(gpu_work: Any) -> None:
    torch = gpu_work.torch
    x = torch.ones(16, device="cuda")

    def backend(graph: Any, inputs: Any) -> Any:
        time.sleep(0.1)  # by the virtual clock compiling takes this, and nothing else
        return graph.forward

    for options in ({"n": 2, "r": 3, "w": 0}, {"n": 2, "r": 3}, {"precision": 0.5}):
        torch.compiler.reset()
        compiled = torch.compile(lambda x: x * 2 + 1, backend=backend)
        timing = gpumagic.cudatime(lambda f=compiled: f(x), **options)
        assert len(timing.compilations) == 1
        assert timing.compilations[0] > 20 * timing.wall.median
        assert timing.wall.worst < timing.compilations[0]
        assert "torch.compile compiled in the first run, not counted" in str(timing)
        if "r" in options:
            assert timing.repeat == 3
        again = gpumagic.cudatime(lambda f=compiled: f(x), **options)
        assert again.compilations == ()


@pytest.fixture(autouse=True)
def _collecting() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


def just_disabled() -> None:
    gc.disable()
    raise KeyboardInterrupt


@pytest.mark.parametrize("point", ["just disabled", "before the end", "at the end"])
def test_an_interrupt_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    if point == "just disabled":
        ours = SimpleNamespace(isenabled=gc.isenabled, enable=gc.enable, disable=just_disabled)
        monkeypatch.setattr(benchmark, "gc", ours)
    elif point == "before the end":
        monkeypatch.setattr(_RunScope, "__exit__", interrupted)
    else:
        monkeypatch.setattr(_RunScope, "_turn_gc_on", interrupted)
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
    before, _ = torch.cuda.mem_get_info()
    ran = run_cell("%%cudatime -q --cold -r 3\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert torch.cuda.mem_get_info()[0] == before
    timing = run_cell("%%cudatime -o -q --cold -n 1 -r 2\nx.add_(1)").value
    assert timing.quality.flushed
    assert torch.cuda.mem_get_info()[0] == before
