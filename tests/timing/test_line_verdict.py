"""What limits a cell, from figures alone."""

from __future__ import annotations

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
    waits: tuple[tuple[str, int, float], ...] = (),
    input_wait: float | None = None,
) -> LineTiming:
    calls = tuple(Synchronization(*wait) for wait in waits)
    waited = sum(wait[2] for wait in waits)
    syncs = sum(wait[1] for wait in waits)
    return LineTiming(
        *(number, "x", 1, gpu, host, syncs, waited, at_most),
        synchronizations=calls,
        input_wait=input_wait,
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
            "the GPU waits for input: line 3, 60 % of the wall time",
        ),
        (
            [line(3, 0.2), line(4, 0.75, waits=ITEM)],
            1.0,
            "GPU-bound: it is busy for 95 % of the wall time, most of it with line 4",
        ),
        (
            [line(3, 0.32), line(4, 0.32), line(5, 0.32)],
            1.0,
            "GPU-bound: it is busy for 96 % of the wall time",
        ),
        ([line(3, 0.9, 0.9, at_most=True)], 1.0, None),
        ([line(3, 0.5, 0.2, input_wait=0.2)], 1.0, None),
        ([line(7, 0.1, 0.2, at_most=True, waits=((".item()", 9, 0.2),))], 1.0, None),
        ([], 1.0, None),
    ],
)
def test_verdict(lines: list[LineTiming], wall: float, expected: str | None) -> None:
    assert verdict(lines, timing(wall)) == expected


def test_none_where_the_figures_are_missing_or_partial() -> None:
    lines = [line(7, 0.6, 0.7, at_most=True, waits=ITEM)]
    assert verdict(lines, timing(1.0, None)) is None
    assert verdict(lines, timing(1.0, partial=True)) is None
