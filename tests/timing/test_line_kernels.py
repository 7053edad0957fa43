"""Kernels by the line that launched them, from the profiler's events; nothing but arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gpumagic.cells.line_tracer import Line
from gpumagic.timing.kernel_trace import report
from gpumagic.timing.line_kernels import LineWork, by_line
from tests.support.traces import Trace

TWO, THREE, FOUR = Line(0, 2), Line(0, 3), Line(0, 4)
OF_STEP, BELOW = Line(1, 8), Line(2, 9)


def running(*spans: tuple[float, float, Line]) -> Callable[[float], Sequence[Line]]:
    """Lines that run from one time to another, the outer ones first."""
    return lambda time: [line for begin, end, line in spans if begin <= time < end]


LINES = running((0, 100, TWO), (100, 200, THREE), (200, 300, FOUR))


def check_sum(trace: Trace, work: dict[Line | None, LineWork]) -> None:
    """The lines of the cell, and what none has launched, are busy as long as the devices are."""
    whole = report(trace.written())
    of_cell = [each for line, each in work.items() if line is None or line.source == 0]
    assert sum(each.busy for each in of_cell) == pytest.approx(sum(whole.busy.values()))
    assert sum(each.kernels for each in of_cell) == whole.count
    assert sum(each.kernel_time for each in of_cell) == pytest.approx(whole.total)


def test_a_kernel_counts_to_the_line_that_launched_it_whenever_it_runs() -> None:
    """The host is far ahead: all run while the last line waits."""
    trace = Trace(0, 400).launched("a", 210, 40, 1, called=10)
    trace.launched("b", 250, 20, 2, called=120).launched("a", 270, 10, 3, called=90)
    work = by_line(trace.written(), LINES)
    check_sum(trace, work)
    assert work == {
        TWO: LineWork(pytest.approx(50e-6), 2, pytest.approx(50e-6)),
        THREE: LineWork(pytest.approx(20e-6), 1, pytest.approx(20e-6)),
    }


def test_the_order_of_records_does_not_matter() -> None:
    """CUPTI's buffers arrive as they are full: kernels may come before their calls."""
    trace = Trace().launched("a", 210, 40, 1, called=10).launched("b", 230, 40, 2, called=110)
    straight = by_line(trace.written(), LINES)
    assert by_line(trace.written()[::-1], LINES) == straight


def test_what_overlaps_counts_once_to_the_one_that_began_first() -> None:
    """Two streams: 40 µs of 70 are shared; and one that runs within the other counts nothing."""
    trace = Trace(0, 400).launched("a", 210, 60, 1, called=10, stream=7)
    trace.launched("b", 230, 50, 2, called=110, stream=20)
    trace.launched("c", 240, 5, 3, called=210, stream=21)
    work = by_line(trace.written(), LINES)
    check_sum(trace, work)
    assert work[TWO].busy == pytest.approx(60e-6)
    assert work[THREE].busy == pytest.approx(10e-6)
    assert work[FOUR] == LineWork(0.0, 1, pytest.approx(5e-6))


def test_devices_do_not_overlap_one_another() -> None:
    trace = Trace(0, 400).launched("a", 50, 60, 1, called=10)
    trace.launched("a", 50, 60, 2, called=12, device=1).launched("b", 60, 90, 3, called=110)
    work = by_line(trace.written(), LINES)
    check_sum(trace, work)
    assert work[TWO].busy == pytest.approx(120e-6)
    assert work[THREE].busy == pytest.approx(40e-6)


def test_copies_and_fills_are_work_but_no_kernels() -> None:
    trace = Trace().copied("Memcpy HtoD (Pageable -> Device)", 30, 40, 1, called=20)
    trace.add("cuda_runtime", "cudaMemsetAsync", 110, 2, correlation=2)
    trace.add("gpu_memset", "Memset (Device)", 115, 3, correlation=2, device=0, stream=7)
    work = by_line(trace.written(), LINES)
    check_sum(trace, work)
    assert work == {
        TWO: LineWork(pytest.approx(40e-6), 0, 0.0),
        THREE: LineWork(pytest.approx(3e-6), 0, 0.0),
    }


def test_a_graphs_kernels_count_to_its_replay() -> None:
    trace = Trace().add("cuda_runtime", "cudaGraphLaunch", 120, 9, correlation=5)
    for at in (130, 140, 150):
        trace.add("kernel", "k", at, 5, correlation=5, device=0, stream=7)
    work = by_line(trace.written(), LINES)
    check_sum(trace, work)
    assert work == {THREE: LineWork(pytest.approx(15e-6), 3, pytest.approx(15e-6))}


def test_other_threads_and_a_backward_pass_count_to_the_line_that_waits_for_them() -> None:
    """Their calls have another ``tid``; the time decides."""
    trace = Trace().launched("forward", 20, 5, 1, called=10)
    for number in (2, 3):
        trace.launched("backward", 100 + 20 * number, 10, number, called=100 + 10 * number)
        trace.events[-2]["tid"] = 4711
    work = by_line(trace.written(), LINES)
    check_sum(trace, work)
    assert (work[TWO].kernels, work[THREE].kernels) == (1, 2)


def test_the_drivers_call_within_the_runtimes_is_the_same_launch() -> None:
    trace = Trace().launched("a", 210, 40, 1, called=98)
    trace.add("cuda_driver", "cuLaunchKernel", 101, 1, correlation=1)
    assert [*by_line(trace.written(), LINES)] == [TWO]
    triton = Trace().launched("triton_poi", 210, 40, 1, "cuLaunchKernelEx", called=110)
    assert [*by_line(triton.written(), LINES)] == [THREE]


def test_what_no_line_launched() -> None:
    """Between the lines, before them, or by a call of which there is no record."""
    trace = Trace(0, 900).launched("other task", 410, 30, 1, called=400)
    trace.launched("early", 10, 5, 2, called=-5)
    trace.add("kernel", "no launch", 500, 7, correlation=99, device=0, stream=7)
    trace.add("kernel", "no number", 510, 7, device=0, stream=7)
    work = by_line(trace.written(), LINES)
    check_sum(trace, work)
    assert work == {None: LineWork(pytest.approx(49e-6), 4, pytest.approx(49e-6))}


def test_a_functions_lines_have_it_as_well_as_the_line_that_calls() -> None:
    lines = running((0, 100, TWO), (10, 90, OF_STEP), (30, 40, BELOW))
    trace = Trace().launched("a", 60, 10, 1, called=35).launched("b", 70, 10, 2, called=55)
    work = by_line(trace.written(), lines)
    check_sum(trace, work)
    assert work[TWO].kernels == 2
    assert work[OF_STEP].kernels == 2
    assert work[BELOW].kernels == 1


def test_a_trace_without_kernels() -> None:
    assert by_line(Trace().add("cpu_op", "aten::add", 1, 2).written(), LINES) == {}
