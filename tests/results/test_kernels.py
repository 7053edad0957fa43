"""The GPU time of a cell, by kernel and by kind of copy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results.kernels import short
from tests.results.examples import GEMM, KERNELS


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
    found = replace(KERNELS, trace=None, notes=(), **fields)  # type: ignore[arg-type]
    assert str(found).splitlines()[-1] == line


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
    assert (KERNELS.count, KERNELS.total) == (3, 40e-6)
    assert KERNELS.busy_share(0) == pytest.approx(0.5)
    assert KERNELS.busy_share(2) is replace(KERNELS, window=None).busy_share(0) is None
    assert KERNELS.agrees is True
    assert replace(KERNELS, lost_kernels=1).agrees is False
    assert replace(KERNELS, visible=False).agrees is None
