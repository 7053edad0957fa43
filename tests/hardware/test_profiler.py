"""What we make of a real trace of torch's profiler, which the virtual GPU cannot give."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hardware.record import Figure
from tests.support.kernels import Kernel

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

SETUP = """
import time, torch
from gpumagic.timing.instruments import Profiled
x = torch.ones(256, 256, device="cuda")
x @ x
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x.add_(1)
begin = time.perf_counter()
with torch.profiler.profile() as profile:
    started = time.perf_counter() - begin
    x.add_(1)
    torch.cuda.synchronize()
seen = sum(event.device_type.name == "CUDA" for event in profile.events())
with Profiled() as profiled:
    for _ in range(10):
        x @ x
    graph.replay()
report = profiled.report
"""


def test_a_real_trace_is_read(kernel: Callable[..., Kernel], figure: Figure) -> None:
    """Ten products and a graph's replay: every launch has its kernel, every kernel its launch."""
    fresh = kernel(load=False)
    fresh.run(SETUP)
    seen = fresh.value("seen")
    figure("torch's profiler: seconds to start, kernels of 1 seen", fresh.value("(started, seen)"))
    kernels = fresh.value("[(kernel.name, kernel.count) for kernel in report.kernels]")
    figure("our profile: kernels", kernels)
    if not seen:
        pytest.skip("CUPTI tells nothing here")
    assert fresh.value("report.visible")
    assert sum(count for _, count in kernels) >= 11  # ten products, and the graph's own
