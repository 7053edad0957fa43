"""What limits a cell, from figures alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpumagic.results import CudaTiming, Sample
from gpumagic.results.line_timing import LineTiming, Synchronization
from gpumagic.timing.line_verdict import verdict


def line(
    number: int,
    gpu: float = 0.0,
    host: float = 0.0,
    *,
    at_most: bool = False,
    waits: Sequence[tuple[Any, ...]] = (),
    input_wait: float | None = None,
    kernels: tuple[int, float] | None = None,
) -> LineTiming:
    """``kernels``: how many, and the sum of their times."""
    calls = tuple(Synchronization(*wait) for wait in waits)
    waited = sum(wait[2] for wait in waits)
    syncs = sum(wait[1] for wait in waits)
    return LineTiming(
        *(number, "x", 1, gpu, host, syncs, waited, at_most),
        synchronizations=calls,
        input_wait=input_wait,
        busy=None if kernels is None else kernels[1],
        kernels=None if kernels is None else kernels[0],
        kernel_time=None if kernels is None else kernels[1],
    )


def timing(wall: float, gpu: float | None = 1.0, *, partial: bool = False) -> CudaTiming:
    sample = None if gpu is None else Sample((gpu,))
    return CudaTiming(sample, Sample((wall,)), Sample((0.1,)), partial=partial)


ITEM = ((".item()", 312, 0.62), (".cpu()", 1, 0.01))


@pytest.mark.parametrize(
    ("lines", "wall", "expected"),
    [
        (
            [line(6, 0.3), line(7, 0.6, 0.7, at_most=True, waits=ITEM)],
            1.0,
            "62 % of the wall time is waiting for .item() in line 7 (312 times)",
        ),
        (
            [line(7, 0.6, 0.7, at_most=True, waits=((".cpu()", 1, 0.5),))],
            1.0,
            "50 % of the wall time is waiting for .cpu() in line 7 (once)",
        ),
        (
            [line(3, 0.5, 0.6, at_most=True, input_wait=0.6), line(4, 0.4)],
            1.0,
            "the GPU waits for input: line 3, 50 % of the wall time",
        ),
        (  # the GPU is at work for half of the wait
            [line(5, 0.41, 0.94, at_most=True, input_wait=0.94), line(6, 0.5)],
            1.0,
            "the GPU waits for input: line 5, 41 % of the wall time",
        ),
        # the GPU is at work meanwhile
        ([line(5, 0.1, 0.9, at_most=True, input_wait=0.9), line(6, 0.85)], 1.0, None),
        ([line(5, 0.8, 0.9, input_wait=0.9)], 1.0, None),
        (
            [line(3, 0.2), line(4, 0.75, waits=ITEM)],
            1.0,
            "GPU-bound: the GPU is busy for 95 % of the wall time, most of it with line 4",
        ),
        (
            [line(3, 0.32), line(4, 0.32), line(5, 0.32)],
            1.0,
            "GPU-bound: the GPU is busy for 96 % of the wall time",
        ),
        ([line(3, 0.9, 0.9, at_most=True)], 1.0, None),
        ([line(3, 0.5, 0.2, input_wait=0.2)], 1.0, None),
        ([line(7, 0.1, 0.2, at_most=True, waits=((".item()", 9, 0.2),))], 1.0, None),
        ([], 1.0, None),
        # by times alone: often it is no coincidence
        (
            [line(7, 0.1, 0.7, at_most=True, waits=(("a call", 3, 0.62, True),))],
            1.0,
            "up to 62 % of the wall time is waiting for a call in line 7 (3 times)",
        ),
        ([line(7, 0.1, 0.7, at_most=True, waits=(("a call", 2, 0.62, True),))], 1.0, None),
    ],
)
def test_verdict(lines: list[LineTiming], wall: float, expected: str | None) -> None:
    assert verdict(lines, timing(wall)) == expected


LAUNCHES = (4100, 4100 * 6e-6)


@pytest.mark.parametrize(
    ("lines", "wall", "expected"),
    [
        (
            [line(8, 0.01, 0.01), line(9, 0.08, 0.08, at_most=True, kernels=LAUNCHES)],
            0.1,
            "launch-bound: 4,100 kernels of 6 µs in line 9",
        ),
        (
            [line(9, 0.01, 0.01, at_most=True, kernels=(1000, 4e-4))],
            0.01,
            "launch-bound: 1,000 kernels of less than 1 µs in line 9",
        ),
        (  # it waits for more than it launches
            [line(9, 0.09, 0.09, at_most=True, kernels=LAUNCHES, waits=((".item()", 9, 0.06),))],
            0.1,
            "60 % of the wall time is waiting for .item() in line 9 (9 times)",
        ),
        # the GPU had work all the time
        ([line(9, 0.08, 0.08, kernels=LAUNCHES)], 0.1, None),
        # the kernels take longer than the launches
        ([line(9, 0.08, 0.02, at_most=True, kernels=LAUNCHES)], 0.1, None),
        # the host does more than to launch: 250 µs a kernel
        ([line(9, 1.0, 1.0, at_most=True, kernels=LAUNCHES)], 1.0, None),
        # a few, which explain nothing
        ([line(9, 0.001, 0.001, at_most=True, kernels=(20, 1e-4))], 0.001, None),
        # a small part of the wall time
        ([line(9, 0.08, 0.08, at_most=True, kernels=LAUNCHES)], 1.0, None),
        # not known
        ([line(9, 0.08, 0.08, at_most=True)], 0.1, None),
    ],
)
def test_launch_bound(lines: list[LineTiming], wall: float, expected: str | None) -> None:
    assert verdict(lines, timing(wall)) == expected


def test_none_where_the_figures_are_missing_or_partial() -> None:
    lines = [line(7, 0.6, 0.7, at_most=True, waits=ITEM)]
    assert verdict(lines, timing(1.0, None)) is None
    assert verdict(lines, timing(1.0, partial=True)) is None


@pytest.mark.parametrize(("cost", "says"), [(0.0, True), (0.3, True), (None, False)], ids=str)
def test_host_times_of_code_that_was_slowed_down_are_no_evidence(
    cost: float | None, says: bool
) -> None:
    lines = [line(2, 0.7, 0.7, at_most=True, input_wait=0.7), line(3, 0.3, 0.01)]
    found = verdict(lines, timing(1.0), cost)
    assert found == ("the GPU waits for input: line 2, 70 % of the wall time" if says else None)
    waiting = [line(7, 0.6, 0.7, at_most=True, waits=ITEM)]
    assert verdict(waiting, timing(1.0), cost) is not None, "waits are measured by themselves"
