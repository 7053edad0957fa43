"""What is sampled agrees with what the lines are known to take, or is a bound, or is unknown."""

from __future__ import annotations

import itertools
import time
from math import fsum
from random import Random
from typing import Any

import pytest

from gpumagic.results import CudaTiming
from gpumagic.results.timing import NO_SIGN
from gpumagic.timing.line_totals import Boundary, Segment, Total
from gpumagic.timing.passed_time import Unmarked, limits
from tests.support.line_cells import measured

PASSES = 2000
#: What a launch and the marks add to a pass at most, in virtual time.
TOLERANCE = 0.05

#: Lines of a loop, by what they take on the GPU, in µs; ``w`` launches and takes no host time else.
LINES: dict[str, tuple[str, float]] = {
    "long kernel": ("w.sleep(1e-4)", 100),
    "short kernel": ("w.sleep(2e-5)", 20),
    "tiny kernel": ("w.sleep(2e-6)", 2),
    "synchronisation": ("w.torch.cuda.synchronize()", 0),
    "wait for the result": ("x.item()", 0),
    "pause": ("time.sleep(5e-5)", 0),
    "nothing": ("y = i", 0),
    "every seventh pass": ("w.sleep(7e-4 if i % 7 == 0 else 1e-5)", (700 + 6 * 10) / 7),
    "every eighth pass": ("w.sleep(4e-4 if i % 8 == 0 else 1e-4)", (400 + 7 * 100) / 8),
}
LOOPS = [
    *((work, rest) for work in ("long kernel", "every seventh pass") for rest in LINES),
    *((work, rest) for work in ("short kernel", "tiny kernel") for rest in [*LINES][2:7]),
    *(
        (work, *rest)
        for work in ("long kernel", "every eighth pass")
        for rest in itertools.permutations(("short kernel", "synchronisation", "pause"), 2)
    ),
]


def check(timing: CudaTiming, true: dict[int, float], *, is_even: bool) -> None:
    """A time is right, a bound holds, and the column adds up."""
    assert timing.lines is not None, timing.notes
    assert timing.gpu is not None
    whole = timing.gpu.median
    lines = {line.line: line for line in timing.lines}
    for number, seconds in true.items():
        line = lines[number]
        if line.gpu is None and timing.gpu_note == NO_SIGN:
            continue  # the cell has no GPU time then
        if line.gpu is None:
            (note,) = (note for note in timing.lines.notes if "no GPU time of line" in note)
            assert str(number) in note
            continue
        accuracy = (TOLERANCE if is_even else 3 * TOLERANCE) * seconds + 0.01 * whole
        assert line.gpu >= seconds - accuracy, (number, line, seconds)
        if not line.at_most:
            assert line.gpu <= seconds + accuracy, (number, line, seconds)
    of_lines = fsum(line.gpu or 0.0 for line in timing.lines)
    assert timing.lines.between is not None
    assert of_lines <= 1.001 * whole
    assert of_lines + (timing.lines.between.gpu or 0.0) == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize("loop", LOOPS, ids=", ".join)
def test_a_loop_is_sampled(loop: tuple[str, ...], gpu_work: Any) -> None:
    texts = [LINES[name][0] for name in loop]
    cell = "\n    ".join([f"for i in range({PASSES}):", *texts])
    x = gpu_work.torch.zeros((), device="cuda")
    timing = measured(cell, w=gpu_work, time=time, x=x)
    true = {i: PASSES * LINES[name][1] * 1e-6 for i, name in enumerate(loop, start=3)}
    is_even = not any("pass" in name for name in loop)
    check(timing, true, is_even=is_even)
    assert timing.lines is not None
    assert max(line.interval for line in timing.lines) >= 8
    if true[3] > 0.5 * PASSES * LINES["long kernel"][1] * 1e-6:
        assert timing.lines[1].gpu is not None, "the line with most of the work has a time"


def _boundary(entered: float, left: float, recorded: tuple[float, float]) -> Boundary:
    boundary = Boundary(entered, 0, [])
    boundary.left, boundary.recorded = left, recorded
    return boundary


def test_limits_of_a_run_on_an_idle_gpu() -> None:
    """The mark before is recorded at 1, the line runs from 3 to 8, and the next mark is at 9."""
    µs = 1e-6
    before = _boundary(0.0, 3 * µs, (1 * µs, 1 * µs))
    end = _boundary(8 * µs, 10 * µs, (9 * µs, 9 * µs))
    assert limits(before, end, 8 * µs) == (0.0, pytest.approx(5 * µs)), "all was done at 9"
    assert limits(before, end, 2 * µs) == (0.0, pytest.approx(1 * µs)), "it was busy until 7"
    least, most = limits(before, end, 20 * µs)
    latency = 5 * µs
    assert least == pytest.approx((21 - 8) * µs - latency), "it began at 8 at the latest"
    assert most == pytest.approx((21 - 3) * µs), "and at 3 at the earliest"
    end.tracing = 0.5 * µs
    assert limits(before, end, 20 * µs)[1] == pytest.approx((21 - 3.5) * µs)
    late = _boundary(8 * µs, 210 * µs, (209 * µs, 209 * µs))
    assert limits(before, late, 208 * µs)[1] == pytest.approx((209 - 3) * µs), "held up"


def test_a_line_has_no_more_idle_time_than_it_takes_the_host() -> None:
    line = _line(*[(0.0, 60.0)] * 9)
    line.hits, line.host = 10, 20.0
    unmarked = Unmarked()
    unmarked.add(600.0, 0.0, [600.0], [Segment(line, 10, [])])
    two = pytest.approx(2.0)
    assert unmarked.divide(may_idle=True)[line] == (two, two, 0.0, 0.0)


def test_work_that_outlasts_the_host_is_not_that_of_runs_with_marks() -> None:
    line = _line(*[(0.0, 60.0)] * 9)
    unmarked = Unmarked()
    unmarked.add(6000.0, 0.0, [6000.0], [Segment(line, 10, [])])
    unmarked.outlasted(-1.0, [Segment(line, 10, [])])
    assert unmarked.divide(may_idle=True)[line].uncertain == 0.0
    unmarked.outlasted(5000.0, [Segment(line, 10, [])])
    assert unmarked.divide(may_idle=True)[line].uncertain == pytest.approx((5000 - 600) / 10)


def _line(*runs: tuple[float, float]) -> Total:
    line = Total(256)
    line.hits, line.host = 10, 1e4
    for least, most in runs:
        line.represented = 1
        line.add_marked(least, most)
    return line


def test_what_is_certain_is_divided_first() -> None:
    kernel, pause = _line((90.0, 110.0)), _line((0.0, 60.0))
    unmarked = Unmarked()
    unmarked.add(1500.0, 0.0, [1500.0], [Segment(kernel, 10, []), Segment(pause, 10, [])])
    found = unmarked.divide(may_idle=True)
    assert found[kernel][:3] == (pytest.approx(110.0), pytest.approx(20.0), 0.0)
    assert found[pause][:3] == (pytest.approx(40.0), pytest.approx(40.0), pytest.approx(20.0))
    # What measuring took is no line's, and the rest is idle.
    unmarked.add(500.0, 200.0, [500.0], [])
    found = unmarked.divide(may_idle=True)
    assert found[kernel][0] == pytest.approx(110.0 + 10 * 20 / 80)
    assert found[pause][0] == pytest.approx(60.0 + 10 * 60 / 80)


def test_busy_time_is_divided_by_work() -> None:
    one, two, none = (_line(*[(each, each)] * 2) for each in (90.0, 10.0, 0.0))
    for passed in (500.0, 2000.0):
        unmarked = Unmarked()
        unmarked.add(passed, 100.0, [passed], [Segment(line, 10, []) for line in (one, two, none)])
        found = unmarked.divide(may_idle=False)
        assert found[one][:3] == (pytest.approx(0.09 * passed), 0.0, 0.0)
        assert found[two][:3] == (pytest.approx(0.01 * passed), 0.0, 0.0)
        assert found[none][:3] == (0.0, 0.0, 0.0)


def test_runs_that_hold_up_the_host_do_not_raise_the_bound() -> None:
    line = _line(*[(50.0, 60.0)] * 9, (50.0, 5000.0))
    unmarked = Unmarked()
    unmarked.add(600.0, 0.0, [600.0], [Segment(line, 10, [])])
    assert unmarked.divide(may_idle=True)[line][:3] == (
        pytest.approx(60.0),
        pytest.approx(10.0),
        0.0,
    )


def test_what_is_lacking_is_of_the_lines_that_differ() -> None:
    """By the squares of their errors; and where these do not explain it, nothing is known."""
    even, uneven = _line(*[(50.0, 50.0)] * 9), _line(*[(10.0, 10.0)] * 8, (100.0, 100.0))
    typical = 10 * (50.0 + 20.0)
    for passed in (typical, typical + 150.0):
        unmarked = Unmarked()
        unmarked.add(passed, 0.0, [passed], [Segment(line, 10, []) for line in (even, uneven)])
        found = unmarked.divide(may_idle=False)
        assert found[even] == (pytest.approx(50.0), 0.0, 0.0, 0.0)
        assert found[uneven] == (pytest.approx(passed / 10 - 50.0), 0.0, 0.0, 0.0)
    unmarked = Unmarked()
    unmarked.add(5000.0, 0.0, [5000.0], [Segment(line, 10, []) for line in (even, uneven)])
    found = unmarked.divide(may_idle=False)
    lacking = (5000.0 - typical) / 10
    assert [share.uncertain for share in found.values()] == [pytest.approx(lacking)] * 2


#: Loops whose passes differ, by line what it takes: the column adds up, and what is even is known.
CHANCE = Random(5)
RARE = [5e-3 if CHANCE.random() < 0.01 else 1e-5 for _ in range(5000)]
UNEVEN: dict[str, tuple[str, dict[int, float]]] = {
    "on a condition": (
        "for i in range(2000):\n    w.sleep(3e-5)\n    if i % 20 == 7: w.sleep(2e-4)",
        {3: 0.06, 4: 0.02},
    ),
    "in three loops": (
        "for i in range(10):\n    for j in range(10):\n        for k in range(20):\n"
        "            w.sleep(3e-5)\n            if k == 7: w.sleep(2e-4)",
        {5: 0.06, 6: 0.02},
    ),
    "rarely": (
        "for i in range(5000):\n    w.sleep(rare[i])\n    w.sleep(5e-5)",
        {3: sum(RARE), 4: 0.25},
    ),
    "in a function": (
        "def step(i):\n    w.sleep(2e-5)\n    if i % 100 == 99: w.sleep(5e-3)\n"
        "for i in range(2000):\n    step(i)\n    w.sleep(3e-5)",
        {6: 0.14, 7: 0.06},
    ),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_passes_that_differ(name: str, gpu_work: Any) -> None:
    cell, true = UNEVEN[name]
    timing = measured(cell, w=gpu_work, rare=RARE)
    assert timing.lines is not None
    lines = {line.line: line for line in timing.lines}
    for number, seconds in true.items():
        line = lines[number]
        assert line.interval > 1
        assert not line.rough
        assert line.gpu == pytest.approx(seconds, rel=0.05), number


def test_a_pass_unlike_all_that_were_measured(gpu_work: Any) -> None:
    """Which line it was is not known, and no line's time is claimed."""
    cell = "for i in range(2000):\n    w.sleep(0.2 if i == last else 2e-5)\n    w.sleep(5e-5)"
    for last in (1999, 1998):  # of these one is not measured
        timing = measured(cell, w=gpu_work, last=last)
        assert timing.lines is not None
        lines = {line.line: line for line in timing.lines}
        if lines[3].gpu is None:
            assert lines[4].gpu is None
            assert any("no GPU time of lines 2, 3, 4" in note for note in timing.lines.notes)
            assert timing.lines.verdict is None
            assert timing.lines.between is not None
            assert timing.gpu is not None
            assert timing.lines.between.gpu == pytest.approx(timing.gpu.median)
            break
        assert lines[3].gpu == pytest.approx(0.24, rel=0.05)
    else:
        pytest.fail("both passes were measured")
