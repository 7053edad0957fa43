"""What limits a cell, from figures alone."""

from __future__ import annotations

import pytest

from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.line_timings import LineTiming
from gpumagic.results.timing.sample import Sample
from gpumagic.timing.lines.verdict import verdict


def line(
    number: int, gpu: float, host: float = 0.0, syncs: int = 0, waited: float = 0.0
) -> LineTiming:
    """A line whose time is an upper bound where the host has one."""
    return LineTiming(number, "x", 1, gpu, host, syncs, waited, at_most=host > 0)


def timing(gpu: float | None = 1.0, *, partial: bool = False) -> CudaTiming:
    sample = None if gpu is None else Sample((gpu,))
    return CudaTiming(sample, Sample((1.0,)), Sample((0.1,)), partial=partial)


WAITING = "62 % of the wall time is waiting for the GPU in line 7 (312 times)"
SLOW = "line 2 takes {} % of the wall time: it may wait for the GPU, or the GPU may be idle then"
BUSY = "GPU-bound: the GPU is busy for 95 % of the wall time"
#: Lines of a cell that takes a second; line 3 is the head of a loop.
CASES = [
    ([line(6, 0.3), line(7, 0.6, 0.7, 312, 0.62)], WAITING),
    ([line(7, 0.6, 0.7, 1, 0.5)], "50 % of the wall time is waiting for the GPU in line 7 (once)"),
    ([line(7, 0.1, 0.2, 9, 0.2)], None),
    (
        [line(3, 0.5, 0.6), line(4, 0.4)],
        "the GPU may wait for input: line 3, 50 % of the wall time",
    ),
    ([line(2, 0.5, 0.6), line(4, 0.4)], SLOW.format(60)),  # no loop
    ([line(3, 0.1, 0.9), line(6, 0.85)], None),  # the GPU is at work meanwhile
    ([line(3, 0.2), line(4, 0.75)], f"{BUSY}, mostly with work of line 4"),
    ([line(3, 0.32), line(4, 0.31), line(5, 0.32)], BUSY),
    ([line(2, 0.9, 0.9)], SLOW.format(90)),
    ([], None),
]


@pytest.mark.parametrize(("lines", "expected"), CASES)
def test_verdict(lines: list[LineTiming], expected: str | None) -> None:
    assert verdict(lines, {3}, timing(), 0.0) == expected


def test_none_where_the_figures_are_missing_or_partial_or_the_measurements_own() -> None:
    lines, _ = CASES[0]
    assert verdict(lines, {3}, timing(None), 0.0) is None
    assert verdict(lines, {3}, timing(partial=True), 0.0) is None
    loading = [line(3, 0.5, 0.6), line(4, 0.4)]
    assert verdict(loading, {3}, timing(), 0.3) is None
    assert verdict(lines, {3}, timing(), 0.3) == WAITING
