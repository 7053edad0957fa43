"""What we make of a real trace of torch's profiler, which the virtual GPU cannot give."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hardware.record import Figure
from tests.support.kernels import Kernel

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

SETUP = """
import time, torch
from gpumagic.timing.profiler import Profiled
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
    seen, problem = fresh.value("(seen, profiled.problem)")
    figure("torch's profiler: seconds to start, kernels of 1 seen", fresh.value("(started, seen)"))
    figure("our profile: problem", problem)
    assert problem is None
    kernels = fresh.value("[(kernel.name, kernel.count) for kernel in report.kernels]")
    launches, graphs = fresh.value("(report.launches, report.graph_launches)")
    lost = fresh.value("(report.lost_kernels, report.lost_launches)")
    figure("our profile: kernels", kernels)
    figure("our profile: launches, of graphs; lost kernels, launches", (launches, graphs, lost))
    if not seen:
        pytest.skip("CUPTI tells nothing here")
    assert fresh.value("report.visible")
    assert launches >= 10
    assert graphs == 1
    assert lost == (0, 0)


CELL = """%%cudatime --lines --kernels -q -v t
for i in range(50):
    y = x @ x
    x.mul_(1)
with torch.cuda.stream(side):
    x.add_(0)
z = (leaf * 2).sum()
z.backward()
torch.cuda.synchronize()
"""


def test_kernels_count_to_the_lines_that_launch_them(
    kernel: Callable[..., Kernel], figure: Figure
) -> None:
    """By the profiler's clock beside the host's; a backward pass runs in a thread of its own."""
    fresh = kernel()
    fresh.run("import torch\nx = torch.eye(256, device='cuda')\nx @ x\nside = torch.cuda.Stream()")
    fresh.run(
        "leaf = torch.ones(8, device='cuda', requires_grad=True)\n(leaf * 2).sum().backward()"
    )
    fresh.run(CELL)
    lines = fresh.value("[(line.line, line.kernels, line.busy, line.gpu) for line in t.lines]")
    figure("our lines: number, kernels, busy, GPU time", lines)
    figure("our lines: verdict, notes", fresh.value("(t.lines.verdict, t.lines.notes)"))
    if not fresh.value("t.kernels.visible"):
        assert all(busy is None for _, _, busy, _ in lines)
        pytest.skip("CUPTI tells nothing here")
    kernels = {number: count for number, count, _, _ in lines}
    assert kernels[3] >= 50
    assert kernels[4] == 50
    assert kernels[6] == 1
    assert kernels[7] >= 2
    assert kernels[8] >= 1
    assert kernels[9] == 0
    between, busy = fresh.value("(t.lines.between.busy, sum(t.kernels.busy.values()))")
    assert between + sum(each for _, _, each, _ in lines) == pytest.approx(busy)
