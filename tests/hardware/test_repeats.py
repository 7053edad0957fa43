"""What repeated runs say on a real GPU: the limit of a cell, queued time, time to an answer."""

from __future__ import annotations

import time
from typing import Any

import pytest

import gpumagic
from gpumagic.timing.repeated.queued_runs import launch_delay
from tests.hardware import work
from tests.hardware.record import Figure
from tests.timing import bottleneck_cells as cells

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch", "warmed")]


@pytest.fixture(scope="module")
def namespace(torch: Any, cycles: float) -> cells.Namespace:
    return cells.namespace(cycles)


def test_a_delay_kernel_is_as_long_as_it_should_be(torch: Any, figure: Figure) -> None:
    taken = work.by_events(torch, lambda: launch_delay(0, 20e-3))
    figure("a delay kernel of 20 ms, in seconds", taken)
    # It is counted in cycles of a clock of 2 GHz; 1.4 times what the host needs is enough.
    assert 14e-3 <= taken <= 60e-3


@pytest.mark.parametrize("name", cells.ALL)
def test_what_limits_a_cell(
    name: str, namespace: cells.Namespace, figure: Figure, real: bool
) -> None:
    """It is known, or nothing is said: not in a dry run, where a launch takes the host no time.

    Queued runs show the GPU's own time of host-bound code only where the events around them
    take less than 5 % of it. Other tests of the process have taken streams, on whose 32 the events
    take 44 µs: too much for a few tiny kernels.
    """
    code, limit = cells.ALL[name]
    timing = gpumagic.cudatime(code, globals=namespace, max_time=1.0)
    run = None if timing.gpu is None else timing.gpu.median
    figure(f"{name}: as run, said", (run, timing.limit_evidence))
    if real:
        assert timing.limited_by == limit or (timing.limited_by is None and limit == "host")
    assert timing.limited_by is None or not timing.gpu_at_most


def test_an_answer_for_a_cell_of_1_ms(torch: Any, cycles: float, figure: Figure) -> None:
    """At the default precision in a tenth of what 10,000 repeats take."""
    begun = time.perf_counter()
    timing = gpumagic.cudatime(lambda: torch.cuda._sleep(int(1e-3 * cycles)), max_time=3.0)
    taken = time.perf_counter() - begun
    figure("an answer for a cell of 1 ms: seconds, precision", (taken, timing.precision))
    assert timing.gpu is not None
    assert taken <= 0.1 * 10_000 * timing.gpu.median


def test_a_cold_cache_is_slower(torch: Any, figure: Figure, real: bool) -> None:
    """For reads of what fits into the L2 cache: a fourth of it, in pieces that a kernel each reads.

    So many kernels that the marks around them count for little; one loop, as with a cold cache.
    """
    if not real:
        pytest.skip("the virtual GPU has no cache")
    quarter = torch.cuda.get_device_properties(0).L2_cache_size // 4
    parts = torch.ones(quarter // 4, device="cuda").chunk(200)
    source = "for part in parts:\n    part.add_(1)"
    told: list[Any] = [
        gpumagic.cudatime(source, n=1, cold=cold, max_time=1.0, globals={"parts": parts})
        for cold in (False, True)
    ]
    warm, cold = (t.gpu.median for t in told)
    figure(f"{quarter} bytes of the L2 cache read and written: warm, cold", (warm, cold))
    assert cold > warm
