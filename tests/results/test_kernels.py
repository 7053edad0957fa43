"""The GPU time of a cell, by kernel and by kind of copy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results.kernels import Kernel, KernelReport, short
from tests.results.examples import GEMM, KERNELS


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
    assert KERNELS.total == 50e-6
    blind = str(replace(KERNELS, visible=False, kernels=()))
    assert blind.startswith("torch's profiler cannot see the GPU here")


def test_only_the_longest_are_shown() -> None:
    many = tuple(Kernel(f"kernel_{i:02}", 1, (25 - i) * 1e-6) for i in range(25))
    shown = str(KernelReport(many))
    assert "kernel_19" in shown
    assert "kernel_20" not in shown
    assert "and 5 more kernels, 15.0 µs" in shown
