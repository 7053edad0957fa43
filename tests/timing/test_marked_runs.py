"""Runs that are written down first, and summed up later, have the times that they took."""

from __future__ import annotations

import time
from math import fsum
from typing import Any

import pytest

from gpumagic.results.line_timing import LineTiming, LineTimings
from gpumagic.timing import line_marks, line_profiler, marked_runs
from gpumagic.timing.line_profiler import TracingCost
from gpumagic.timing.line_timer import LineTimer
from gpumagic.timing.marked_runs import MarkedRuns
from tests.support.line_cells import measured

#: What the marks of a line may add to a run of it.
MARK = 50e-6


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The runs that were written down, by the number of the line that follows."""
    numbers: list[int] = []
    go_to = MarkedRuns.go_to

    def noting(runs: MarkedRuns, number: int) -> bool:
        before = runs.runs
        done = go_to(runs, number)
        numbers.extend([number] * (runs.runs - before))
        return done

    monkeypatch.setattr(MarkedRuns, "go_to", noting)
    return numbers


def lines_of(cell: str, *functions: Any, **names: Any) -> LineTimings:
    timing = measured(cell, functions, time=time, **names)
    assert timing.lines is not None, timing.notes
    assert timing.lines.complete
    assert timing.gpu is not None
    assert timing.lines.between is not None
    total = fsum(line.gpu or 0.0 for line in (*timing.lines.cell.lines, timing.lines.between))
    assert total == pytest.approx(timing.gpu.median, rel=0.001)
    return timing.lines


def check(line: LineTiming, hits: int, gpu: float, host: float) -> None:
    """A line has its runs, its GPU time, and at least the host time of its sleeps."""
    assert line.hits == hits, line
    assert line.gpu == pytest.approx(gpu, rel=0.02, abs=hits * MARK), line
    assert host <= line.host, line


#: The kernels outlast the host, so that no time is an upper bound.
LOOP = """\
w.sleep(.5)
for i in range(40):
    w.sleep(1e-3)
    time.sleep(5e-4)
    w.sleep(2e-3); time.sleep(5e-4)
    x = (
        time.sleep(5e-4)
    )
w.sleep(.01)
"""


@pytest.mark.parametrize("most", [1024, 7])
def test_a_loop(
    most: int, written: list[int], gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line is new, and the statement of three lines is one."""
    monkeypatch.setattr(marked_runs, "_MOST", most)
    monkeypatch.setattr(line_marks, "_WAITING", most)
    lines = lines_of(LOOP, w=gpu_work)
    by_number = {line.line: line for line in lines}
    check(by_number[2], 1, 0.5, 0.0)
    check(by_number[3], 41, 0.0, 0.0)
    check(by_number[4], 40, 0.04, 0.0)
    check(by_number[5], 40, 0.0, 0.02)
    check(by_number[6], 40, 0.08, 0.02)
    check(by_number[7], 40, 0.0, 0.02)
    check(by_number[10], 1, 0.01, 0.0)
    assert len(written) >= 0.8 * 5 * 40
    assert written[-1] == 10
    assert not any(line.at_most for line in lines)


def test_what_waits_is_named(written: list[int], gpu_work: Any) -> None:
    """Each call counts to the line in which it was made."""
    x = gpu_work.torch.zeros((), device="cuda")
    cell = "for i in range(20):\n    time.sleep(5e-4)\n    w.sleep(1e-3)\n    x.item()\n    x.cpu()"
    lines = {line.line: line for line in lines_of(cell, w=gpu_work, x=x)}
    assert len(written) >= 40
    for number, call in ((5, ".item()"), (6, ".cpu()")):
        (found,) = lines[number].synchronizations
        assert (found.call, found.count) == (call, 20)
    assert lines[5].sync_time == pytest.approx(0.02, rel=0.05)
    assert lines[3].syncs == lines[4].syncs == 0


def test_a_traced_function_between_them(written: list[int], gpu_work: Any) -> None:
    """Its runs are written down apart, and its caller's line has their time, too."""

    def step() -> None:
        for _ in range(20):
            gpu_work.sleep(1e-3)
            time.sleep(5e-4)
        time.sleep(5e-4)

    cell = (
        "w.sleep(.3)\nfor i in range(10):\n    time.sleep(5e-4)\nstep()\nstep()\n"
        "for i in range(10):\n    time.sleep(5e-4)\n    w.sleep(2e-3)"
    )
    lines = lines_of(cell, step, w=gpu_work, step=step)
    of_cell = {line.line: line for line in lines}
    (function,) = lines.functions
    first = function.first
    of_step = {line.line - first: line for line in function.lines}
    assert len(written) >= 60
    check(of_cell[4], 10, 0.0, 0.005)
    for number in (5, 6):
        check(of_cell[number], 1, 0.02, 0.0105)
        assert of_cell[number].gpu == pytest.approx(0.02, rel=0.02, abs=42 * MARK)
    check(of_cell[8], 10, 0.0, 0.005)
    check(of_cell[9], 10, 0.02, 0.0)
    check(of_step[1], 42, 0.0, 0.0)
    check(of_step[2], 40, 0.04, 0.0)
    check(of_step[3], 40, 0.0, 0.02)
    check(of_step[4], 2, 0.0, 0.001)


def test_a_device_that_comes_into_use(written: list[int], gpu_work: Any) -> None:
    """The time of the work with which it did so is not known, nor is that of its line then."""
    cell = (
        "for i in range(20):\n    time.sleep(5e-4)\n    w.sleep(1e-3, i // 10)\n"
        "    w.torch.cuda.synchronize(i // 10)"
    )
    timing = measured(cell, time=time, w=gpu_work)
    assert timing.lines is not None
    assert len(written) >= 40
    of_line = {line.line: line for line in timing.lines}[4]
    assert of_line.hits == 20
    # Or both were in use before.
    assert of_line.gpu is None or of_line.gpu == pytest.approx(0.02, rel=0.02, abs=20 * MARK)


def test_a_capture_among_them(written: list[int], gpu_work: Any) -> None:
    """No mark is recorded while a graph is captured, and it is captured as without us."""
    torch = gpu_work.torch
    torch.zeros(1, device="cuda")
    cell = (
        "graph = torch.cuda.CUDAGraph()\n"
        "for i in range(10):\n    time.sleep(5e-4)\n"
        "with torch.cuda.graph(graph):\n    time.sleep(5e-4)\n    w.sleep(1e-3)\n"
        "    time.sleep(5e-4)\n"
        "for i in range(10):\n    graph.replay()\n    time.sleep(5e-4)\n"
    )
    timing = measured(cell, time=time, torch=torch, w=gpu_work)
    assert not timing.partial
    assert timing.lines is not None
    by_number = {line.line: line for line in timing.lines}
    assert len(written) >= 15
    assert by_number[10].hits == 10
    assert by_number[10].gpu == pytest.approx(0.01, rel=0.02, abs=10 * MARK)


def test_a_device_that_fails_among_them(
    written: list[int], gpu_work: Any, virtual_gpu: Any
) -> None:
    """The host times go on, and a note says why there are no others."""
    cell = (
        "for i in range(20):\n    time.sleep(5e-4)\n    w.sleep(1e-3)\n"
        "    if i == 10: fail()\n    time.sleep(5e-4)"
    )
    try:
        timing = measured(
            cell,
            time=time,
            w=gpu_work,
            fail=lambda: virtual_gpu.fault("cudaEventRecord*", 999),
        )
    finally:
        virtual_gpu.clear_faults()
    assert not timing.partial
    assert timing.lines is not None
    assert len(written) >= 60
    assert any("the GPU cannot be asked" in note for note in timing.lines.notes)
    by_number = {line.line: line for line in timing.lines}
    assert [by_number[number].hits for number in range(2, 7)] == [21, 20, 20, 20, 20]
    assert by_number[3].host >= 0.01
    assert {line.gpu for line in timing.lines} == {None}


def test_without_a_gpu_there_are_host_times(written: list[int]) -> None:
    timing = measured("for i in range(20):\n    time.sleep(5e-4)\n    x = i", time=time)
    assert timing.lines is not None
    assert len(written) >= 20
    by_number = {line.line: line for line in timing.lines}
    assert [by_number[number].hits for number in (2, 3, 4)] == [21, 20, 20]
    assert by_number[3].host >= 0.01
    assert by_number[4].host < 0.01


def test_a_loop_of_short_lines_is_sampled(written: list[int], gpu_work: Any) -> None:
    """Long runs before them change nothing about that."""
    cell = "for i in range(20):\n    time.sleep(5e-4)\nfor i in range(3000):\n    x = i"
    lines = {line.line: line for line in lines_of(cell, w=gpu_work)}
    assert lines[5].interval >= 8
    assert written.count(5) < 30


def test_short_lines_beside_long_ones_are_no_sample(gpu_work: Any) -> None:
    """They are all measured, however many there are."""
    cell = "for i in range(600):\n    time.sleep(4e-4)\n    x = i\n    w.sleep(1e-4)"
    lines = lines_of(cell, w=gpu_work)
    assert [(line.hits, line.interval) for line in lines] == [
        (601, 1),
        (600, 1),
        (600, 1),
        (600, 1),
    ]


def test_the_writing_is_no_lines_time(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are the sums that are made meanwhile: they are what measuring took."""
    monkeypatch.setattr(marked_runs, "_MOST", 10)
    sum_up, took = MarkedRuns.sum_up, []

    def slow(runs: MarkedRuns) -> None:
        time.sleep(0.02)
        took.append(0.02)
        sum_up(runs)

    monkeypatch.setattr(MarkedRuns, "sum_up", slow)
    monkeypatch.setattr(line_profiler, "tracing_cost", TracingCost)
    timers: list[LineTimer] = []
    finish = LineTimer.finish

    def noting(timer: LineTimer) -> None:
        timers.append(timer)
        finish(timer)

    monkeypatch.setattr(LineTimer, "finish", noting)
    cell = "w.sleep(2)\nfor i in range(40):\n    time.sleep(5e-4)\n    w.sleep(1e-3)"
    timing = measured(cell, time=time, w=gpu_work)
    assert timing.lines is not None
    assert timing.wall.median > fsum(took[:-1])
    assert fsum(line.host for line in timing.lines) < timing.wall.median - fsum(took[:-1])
    assert timers[-1].own >= fsum(took[:-1])
