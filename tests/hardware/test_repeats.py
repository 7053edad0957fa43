"""What repeated runs say on a real GPU: the limit of a cell, queued time, time to an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import gpumagic
from tests.timing import cells

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

Figure = Callable[[str, Any], None]


@pytest.fixture(scope="module")
def cycles(torch: Any) -> float:
    """Cycles of ``torch.cuda._sleep`` in a second, as the queued samples' own hold counts them."""
    from gpumagic import torch_cuda
    from gpumagic.timing import queued

    torch.ones(1, device="cuda")
    return queued._rate(0, torch_cuda.current_stream(0))


@pytest.fixture(scope="module")
def namespace(torch: Any, cycles: float) -> cells.Namespace:
    return cells.namespace(cycles)


def test_a_hold_is_as_long_as_it_should_be(torch: Any, cycles: float, figure: Figure) -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    torch.cuda._sleep(int(0.02 * cycles))
    end.record()
    end.synchronize()
    figure("a hold of 20 ms, in ms", start.elapsed_time(end))
    assert 15 <= start.elapsed_time(end) <= 30


def test_a_queued_sample_of_nothing(torch: Any, figure: Figure) -> None:
    """What the marks themselves take is little beside the smallest kernel."""
    from gpumagic.timing.measure import Stopwatch
    from gpumagic.timing.queued import Hold

    watch, taken = Stopwatch(), []
    for _ in range(9):
        watch.start(Hold(0, 10e-3))
        reading = watch.stop().readings[0]
        taken.append((reading.seconds, reading.held))
    figure("queued samples of nothing: seconds, held to the end", taken)
    assert sum(held for _, held in taken) >= 7
    assert min(seconds for seconds, _ in taken) < 50e-6


@pytest.mark.parametrize("name", cells.ALL)
def test_what_limits_a_cell(name: str, namespace: cells.Namespace, figure: Figure) -> None:
    code, limit = cells.ALL[name]
    timing = gpumagic.cudatime(code, globals=namespace, max_time=1.0)
    queued = None if timing.queued is None else timing.queued.median
    assert timing.gpu is not None
    figure(f"{name}: as run, queued, said", (timing.gpu.median, queued, timing.bound_evidence))
    assert timing.bound == limit


def test_an_answer_for_a_cell_of_1_ms(torch: Any, cycles: float, figure: Figure) -> None:
    """At the default precision in a tenth of what 10,000 repeats take."""
    begun = time.perf_counter()
    timing = gpumagic.cudatime(lambda: torch.cuda._sleep(int(1e-3 * cycles)), precision=0.01)
    taken = time.perf_counter() - begun
    assert timing.gpu is not None
    figure("an answer for a cell of 1 ms: seconds, quality", (taken, timing.quality))
    assert taken <= 0.1 * 10_000 * timing.gpu.median


def test_a_cold_cache_is_slower(torch: Any, figure: Figure, request: pytest.FixtureRequest) -> None:
    """For a read of what fits into the L2 cache."""
    x = torch.ones(2**20, device="cuda")
    y = torch.empty_like(x)
    code = {"globals": {"torch": torch, "x": x, "y": y}, "queued": True, "max_time": 1.0}
    source = "torch.add(x, 1, out=y)"
    warm, cold = (gpumagic.cudatime(source, cold=cold, **code) for cold in (False, True))
    assert warm.queued is not None
    assert cold.queued is not None
    figure("4 MiB read and written, queued: warm, cold", (warm.queued.median, cold.queued.median))
    if request.config.getoption("hardware") == "real":
        assert cold.queued.median > warm.queued.median
