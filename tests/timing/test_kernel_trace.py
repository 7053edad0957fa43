"""Kernels, copies and launches from the profiler's events; constructed as Kineto writes them."""

from __future__ import annotations

import pytest

from gpumagic.results import KernelReport
from gpumagic.timing.kernel_trace import report
from tests.support.traces import Trace

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
GEMM = "ampere_sgemm_128x64_tn"


def read(trace: Trace) -> KernelReport:
    return report(trace.written())


def test_kernels_by_time() -> None:
    trace = Trace().launched(ADD, 10, 3, 1).launched(GEMM, 20, 40, 2).launched(ADD, 70, 5, 3)
    found = read(trace)
    assert [(k.name, k.count) for k in found.kernels] == [(GEMM, 1), (ADD, 2)]
    assert found.kernels[1].total == pytest.approx(8e-6)
    assert found.kernels[1].shortest == pytest.approx(3e-6)
    assert found.kernels[1].longest == pytest.approx(5e-6)
    assert found.kernels[1].devices == (0,)
    assert found.total == pytest.approx(48e-6)
    assert (found.count, found.launches, found.agrees) == (3, 3, True)


def test_busy_counts_what_overlaps_once_and_each_device_by_itself() -> None:
    trace = Trace(duration=200)
    for at, long, device in ((10, 40, 0), (30, 40, 0), (60, 5, 0), (100, 10, 0), (20, 80, 1)):
        trace.add("kernel", GEMM, at, long, device=device, stream=at)
    trace.add("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 105, 15, device=0, bytes=64)
    found = read(trace)
    assert found.busy == pytest.approx({0: 80e-6, 1: 80e-6})
    assert found.total == pytest.approx(175e-6)
    assert found.busy_share(0) == pytest.approx(0.4)
    assert found.busy_share(2) is None


def test_the_window_ends_with_the_last_work() -> None:
    assert read(Trace(5, 50).launched(GEMM, 20, 100, 1)).window == pytest.approx(115e-6)
    assert read(Trace(5, 50).launched(GEMM, 20, 10, 1)).window == pytest.approx(50e-6)


def test_copies_and_fills() -> None:
    name = "Memcpy DtoH (Device -> Pinned)"
    trace = Trace().add("cuda_runtime", "cudaMemcpyAsync", 1, 1, correlation=1)
    trace.add("gpu_memcpy", name, 10, 2, device=0, bytes=1000, correlation=1)
    trace.add("gpu_memcpy", name, 20, 3, device=0, bytes=500, correlation=2)
    trace.add("gpu_memset", "Memset (Device)", 30, 1, device=0, correlation=3)
    copies = read(trace).copies
    assert [(copy.name, copy.count, copy.bytes) for copy in copies] == [
        (name, 2, 1500),
        ("Memset (Device)", 1, None),
    ]
    assert copies[0].total == pytest.approx(5e-6)
    assert "lost" not in str(read(trace))


def test_launches_without_a_kernel() -> None:
    trace = Trace().launched(GEMM, 10, 5, 1)
    trace.add("cuda_runtime", "cudaLaunchKernelExC", 30, 2, correlation=2)
    found = read(trace)
    assert found.agrees is False
    assert (found.launches, found.lost_kernels, found.lost_launches) == (2, 1, 0)
    assert "the profiler lost records: 1 of 2 launches have no kernel" in str(found)


def test_kernels_without_a_launch() -> None:
    trace = Trace().launched(GEMM, 10, 5, 1).add("kernel", ADD, 30, 5, correlation=9, device=0)
    found = read(trace)
    assert (found.agrees, found.lost_launches) == (False, 1)
    assert "1 of 2 kernels have no launch" in str(found)


def test_launches_of_all_kinds() -> None:
    """The driver's call inside the runtime's is the same launch; Triton's is by itself."""
    trace = Trace().launched(GEMM, 10, 5, 1).launched("triton_poi", 20, 5, 2, "cuLaunchKernelEx")
    trace.add("cuda_driver", "cuLaunchKernel", 5.5, 1, correlation=77)
    trace.launched("hip", 40, 1, 3, "hipExtModuleLaunchKernel")
    found = read(trace)
    assert (found.launches, found.agrees) == (3, True)


def test_a_graph_launches_many() -> None:
    trace = Trace().add("cuda_runtime", "cudaGraphLaunch", 1, 2, correlation=5)
    for at in (10, 20, 30):
        trace.add("kernel", GEMM, at, 5, correlation=5, device=0)
    found = read(trace)
    assert (found.launches, found.graph_launches, found.agrees) == (0, 1, True)
    assert "3 kernels, as launched (0 launches, 1 CUDA graph launch)" in str(found)


def test_a_blind_profiler_is_not_a_cell_without_kernels() -> None:
    blind = read(Trace().add("cpu_op", "aten::add", 1, 2))
    assert not blind.visible
    assert blind.agrees is None
    assert str(blind).startswith("torch's profiler cannot see the GPU here")
    synchronize = Trace().add("cuda_runtime", "cudaDeviceSynchronize", 90, 2, correlation=1)
    nothing = read(synchronize)
    assert nothing.visible
    assert str(nothing) == "no kernel ran, and nothing was copied"
