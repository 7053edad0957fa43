"""The times of a cell, and several compared."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpumagic.render.blocks import Fold, Grid
from gpumagic.results.base import as_text
from gpumagic.results.timing.comparison import Compared, Comparison, Ratio
from gpumagic.results.timing.kernels import Kernel, KernelReport, short
from gpumagic.results.timing.sample import Sample
from gpumagic.results.timing.timing_log import CellTiming, TimingLog
from tests.results.examples import (
    AT_MOST_CELL,
    FAILED_CELL,
    GEMM,
    GPU_CELL,
    REPEATED,
    SINGLE,
    TIMING_LOG,
    timing,
)
from tests.support.drawing import check_drawing

ONE_LINE = """\
10.0 ms on cuda:1 · wall 12.0 ms · CPU < 1 µs · Python returned after 1.00 ms
compiled in 500 ms, which is not counted
a note"""


def test_drawing_of_a_single_run() -> None:
    check_drawing(SINGLE, ONE_LINE)
    two = replace(SINGLE, per_device={0: Sample((0.010,)), 1: Sample((0.002,))}, gpu_at_most=True)
    gpu = "≤ 10.0 ms on 2 devices · cuda:0 ≤ 10.0 ms, cuda:1 ≤ 2.00 ms"
    rest = "wall 12.0 ms · CPU < 1 µs · Python returned after 1.00 ms"
    assert str(replace(two, gpu_seen=True)).splitlines()[0] == f"{gpu} · {rest}"
    unseen = replace(two, host=two.wall, compile_time=0.0, notes=())
    assert str(unseen) == "wall 12.0 ms · CPU < 1 µs · no GPU work seen (≤ 10.0 ms)"


def test_one_repeat_has_no_spread() -> None:
    line, *rows = str(timing(0.1, repeat=1, loops=1000)).splitlines()
    assert line == "100 ms on the GPU · wall 100 ms per loop (1 repeat, 1,000 loops each)"
    rows = rows[2:5]
    assert [row.split()[0] for row in rows] == ["GPU", "Wall", "CPU"]
    assert all(" – " in row and "±" not in row for row in rows)


def test_a_magic_shows_one_line_and_the_table_on_demand() -> None:
    """In a notebook it is folded; the result itself has it, and its legend once."""
    assert str(REPEATED).count("IQR: the width") == 1
    line, *rest = REPEATED.brief()
    assert isinstance(line, Fold)
    assert "10 loops each" in line.summary.parts[-3].text
    assert not any(isinstance(block, Grid) for block in rest)
    assert SINGLE.brief() == SINGLE.blocks()


def test_what_is_no_time_of_each_repeat_is_a_bound() -> None:
    """Where the median is exact, others may still be bounds, and these have no spread."""
    result = timing(0.1, 0.1, 0.9, repeat=3, gpu_at_least=Sample((0.1, 0.1, 0.1)))
    row = next(line for line in str(result).splitlines() if line.startswith("GPU"))
    assert re.split(r"\s{2,}", row) == ["GPU", "100 ms", "–", "≤ 100 ms", "≤ 900 ms", "≤ 367 ms"]
    exact = replace(result, gpu_at_least=result.gpu)
    assert repr(exact) == (
        "<CudaTiming: 100 ms ± 400 ms on the GPU · wall 100 ms ± 400 ms per loop "
        "(median ± IQR of 3 repeats, 1 loop each)>"
    )
    for shown, bounds in ((exact, 0), (replace(exact, gpu_at_most=True), 4)):
        row = next(line for line in str(shown).splitlines() if line.startswith("GPU "))
        assert row.count("≤") == bounds


def test_the_work_of_a_loop() -> None:
    """What was not counted is not 0; of an upper bound the rate is a lower one."""
    assert "500 mJ per loop · 123 W" in str(REPEATED)
    assert "FLOP" not in str(REPEATED)
    counted = replace(SINGLE, flops=20_000_000)
    assert "20.0 MFLOP · 2.00 GFLOP/s" in str(counted)
    assert "· ≥ 2.00 GFLOP/s" in str(replace(counted, gpu_at_most=True))
    assert "FLOP/s" not in str(replace(counted, gpu=None))
    assert "0 FLOP by torch's counter, which does not" in str(replace(SINGLE, flops=0))


def test_data_frame() -> None:
    pytest.importorskip("pandas")
    result = timing(0.1, 0.2, 0.3, per_device={1: Sample((0.1, 0.2, 0.3))})
    frame = result.to_pandas()
    assert list(frame.columns) == ["gpu", "wall", "cpu", "host", "cuda:1"]
    assert list(frame.index) == [1, 2, 3]
    assert frame.index.name == "repeat"
    assert list(frame["gpu"]) == [0.1, 0.2, 0.3]
    assert frame["host"].isna().all()
    # Queued runs are of another number.
    queued = replace(result, gpu=Sample((0.2, 0.3))).to_pandas()
    assert list(queued["gpu"].dropna()) == [0.2, 0.3]
    assert len(replace(result, gpu=Sample((0.2,) * 6)).to_pandas()) == 3


# --- the cells of a session ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        (GPU_CELL, "GPU 1.50 s (cuda:0 ≤ 1.00 s, cuda:1 ≤ 1.50 s) · wall 2.00 s · CPU 250 ms"),
        (
            CellTiming(1, "x", 1.0, 1.0, 1.0, used_gpu=True, note="no event"),
            "wall 1.00 s · CPU 1.00 s · no event",
        ),
        (
            replace(AT_MOST_CELL, gpu_at_least=0.004),
            "GPU ≤ 10.0 ms, at least 4.00 ms · wall 20.0 ms · CPU 20.0 ms",
        ),
        (
            replace(AT_MOST_CELL, used_gpu=False),
            "wall 20.0 ms · CPU 20.0 ms · no GPU work seen (≤ 10.0 ms)",
        ),
        (replace(AT_MOST_CELL, gpu=None, wall_at_most=True), "wall ≤ 20.0 ms · CPU 20.0 ms"),
    ],
)
def test_the_line_of_a_cell(cell: CellTiming, line: str) -> None:
    check_drawing(cell, line)


def test_a_long_log_shows_the_longest() -> None:
    cells = tuple(CellTiming(i, f"cell {i}", i / 10, i / 10, cpu=0.1) for i in range(1, 31))
    lines = str(TimingLog(cells)).splitlines()
    assert lines[0] == "30 cells: wall 46.5 s, CPU 3.00 s; 0 with a sign of GPU work: GPU –"
    assert lines[3].split()[0] == "[30]"
    assert len(lines) == 3 + 20 + 1
    assert lines[-1] == "the 20 longest are shown; .to_pandas() has all 30"


def test_sums() -> None:
    assert str(TIMING_LOG).splitlines()[0] == (
        "3 cells: wall 2.02 s, CPU 270 ms; 2 with a sign of GPU work: GPU ≤ 1.51 s"
    )
    assert str(TimingLog((FAILED_CELL,))).splitlines()[0].endswith("GPU –")
    assert "1 cell: wall ≤ " in str(TimingLog((replace(GPU_CELL, wall_at_most=True),)))


def test_a_ratio_that_rounds_to_one_is_the_same() -> None:
    base = Compared("a", timing(0.010, 0.011))
    near = Compared("b", timing(0.010, 0.011), Ratio(1.001, (1.0005, 1.002), "slower"))
    wide = Compared("c", timing(0.010, 0.011), Ratio(0.999, (0.9, 1.1), "noise"))
    lines = as_text(Comparison((base, near, wide)), 200).splitlines()
    assert "within noise (1.00–1.00)" in lines[3]
    assert "within noise (0.90–1.10)" in lines[4]
    assert Comparison((base, near, wide))[0:2] == (base, near)


# --- kernels --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (GEMM, GEMM),
        ("void f<int>(int, float (*)(int))", "f<int>"),
        ("(anonymous namespace)::elementwise(int)", "elementwise"),
        ("x" * 70, "x" * 59 + "…"),
    ],
)
def test_names_of_kernels_are_shortened(name: str, shown: str) -> None:
    assert short(name) == shown


def test_only_the_longest_kernels_are_shown() -> None:
    shown = str(KernelReport(tuple(Kernel(f"k{i:02}", 1, (25 - i) * 1e-6) for i in range(25))))
    assert ("k19" in shown, "k20" in shown) == (True, False)
    assert "and 5 more kernels, 15.0 µs" in shown
    blind = str(KernelReport(visible=False))
    assert blind.startswith("torch's profiler cannot see the GPU here")
