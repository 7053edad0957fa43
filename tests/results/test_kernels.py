"""The GPU time of a cell, by kernel and by kind of copy."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpumagic.results import Copy, Kernel, KernelReport
from gpumagic.results.kernels import short
from tests.support.drawing import check_drawing

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
GEMM = "ampere_sgemm_128x64_tn"
REPORT = KernelReport(
    (Kernel(GEMM, 1, 30e-6, 30e-6, 30e-6, (0,)), Kernel(ADD, 2, 10e-6, 4e-6, 6e-6, (0,))),
    (Copy("Memcpy HtoD", 1, 10e-6, 2**20), Copy("Memset (Device)", 2, 1e-6)),
    window=100e-6,
    busy={0: 50e-6, 1: 10e-6},
    launches=3,
    trace="trace.json",
    notes=("a note",),
)
TEXT = """\
cuda:0 busy 50.0 µs of 100 µs: 50 %  (under the profiler, which slows the host)
cuda:1 busy 10.0 µs of 100 µs: 10 %
Kernel                                                        Count    Total          Share     Mean
────────────────────────────────────────────────────────────────────────────────────────────────────
ampere_sgemm_128x64_tn                                            1  30.0 µs  ██████   75 %  30.0 µs
vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, st…      2  10.0 µs  ██       25 %  5.00 µs
Copy             Count    Total      Size  Per second
─────────────────────────────────────────────────────
Memcpy HtoD          1  10.0 µs  1.00 MiB    97.7 GiB
Memset (Device)      2  1.00 µs         –           –
3 kernels, as many as launched (3 launches)
trace written to trace.json; ui.perfetto.dev opens it
a note"""


def test_drawing() -> None:
    check_drawing(REPORT, TEXT)
    check_drawing(KernelReport(), "no kernel ran, and nothing was copied")
    blind = str(KernelReport(visible=False))
    assert blind.startswith("torch's profiler cannot see the GPU here")


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"launches": None}, "3 kernels; the launches were not recorded"),
        (
            {"launches": 1, "graph_launches": 1},
            "3 kernels, as launched (1 launch, 1 CUDA graph launch)",
        ),
        (
            {"launches": 4, "lost_kernels": 1},
            "the profiler lost records: 1 of 4 launches have no kernel",
        ),
        (
            {"launches": 2, "lost_launches": 1},
            "the profiler lost records: 1 of 3 kernels have no launch",
        ),
    ],
)
def test_kernels_and_launches(fields: dict[str, int | None], line: str) -> None:
    found = replace(REPORT, trace=None, notes=(), **fields)  # type: ignore[arg-type]
    assert str(found).splitlines()[-1] == line


def test_only_the_longest_are_shown() -> None:
    many = tuple(Kernel(f"kernel_{i:02}", 1, (25 - i) * 1e-6, 1e-6, 1e-6) for i in range(25))
    shown = str(KernelReport(many, launches=25))
    assert "kernel_19" in shown
    assert "kernel_20" not in shown
    assert "and 5 more kernels, 15.0 µs together" in shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (GEMM, GEMM),
        ("void f<int>(int, float (*)(int))", "f<int>"),
        ("(anonymous namespace)::elementwise(int)", "elementwise"),
        ("x" * 70, "x" * 59 + "…"),
    ],
)
def test_names_are_shortened(name: str, shown: str) -> None:
    assert short(name) == shown


def test_data() -> None:
    assert (REPORT.count, REPORT.total) == (3, 40e-6)
    assert REPORT.busy_share(0) == pytest.approx(0.5)
    assert REPORT.busy_share(2) is replace(REPORT, window=None).busy_share(0) is None
    assert REPORT.agrees is True
    assert replace(REPORT, lost_kernels=1).agrees is False
    assert replace(REPORT, visible=False).agrees is None


def test_repr() -> None:
    assert repr(REPORT) == "<KernelReport: 3 kernels, 4e-05 s>"
    assert repr(replace(REPORT, visible=False)) == "<KernelReport: the profiler cannot see the GPU>"


def test_data_frame() -> None:
    pytest.importorskip("pandas")
    frame = REPORT.to_pandas()
    assert list(frame["kind"]) == ["kernel", "kernel", "copy", "copy"]
    assert list(frame["share"])[:2] == pytest.approx([0.75, 0.25])
    assert json.loads(REPORT.to_json())["kernels"][0]["name"] == GEMM
