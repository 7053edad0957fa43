"""All lines of a pass of a loop are marked, or none; and rare ones always."""

from __future__ import annotations

from random import Random

import pytest

from gpumagic.timing.line_passes import Passes
from gpumagic.timing.line_totals import Total


class Loop:
    """Lines that run, and which of the runs are marked."""

    def __init__(self) -> None:
        self._passes, self._random = Passes(), Random(0)
        self.totals: dict[int, Total] = {}
        self.marked: dict[int, list[bool]] = {}

    def run(self, *numbers: int) -> None:
        for number in numbers:
            total = self.totals.setdefault(number, Total(64))
            total.hits += 1
            is_marked = self._passes.go_to(number, total, self._random)
            self.marked.setdefault(number, []).append(is_marked)


def test_all_lines_of_a_pass() -> None:
    loop = Loop()
    loop.run(1)
    for _ in range(500):
        loop.run(2, 3, 4)
    loop.run(2, 5)
    assert loop.marked[3] == loop.marked[4] == loop.marked[2][:-1]
    assert all(loop.marked[2][:64])
    assert sum(loop.marked[2]) == pytest.approx(160, abs=20)
    assert loop.marked[1] == loop.marked[5] == [True]
    assert loop.totals[3].sampled_by is loop.totals[2]


@pytest.mark.parametrize("period", [2, 3, 8, 16])
def test_no_period_of_the_loop_is_preferred(period: int) -> None:
    loop = Loop()
    for _ in range(5000):
        loop.run(2, 3)
    late = [i for i, is_marked in enumerate(loop.marked[3]) if is_marked and i > 256]
    counts = [sum(i % period == phase for i in late) for phase in range(period)]
    assert min(counts) > 0


def test_loops_within_loops() -> None:
    """The lines after an inner loop are in the pass of the outer one."""
    loop = Loop()
    for _ in range(6):
        loop.run(2, 3)
        for _ in range(100):
            loop.run(4, 5)
        loop.run(4, 6)
    assert all(loop.marked[2] + loop.marked[3] + loop.marked[6])
    assert not all(loop.marked[5])
    outer = Loop()
    for _ in range(300):
        outer.run(2, 3, 4, 5, 4, 5, 4, 6)
    assert outer.marked[6] == outer.marked[3] == outer.marked[2]


def test_a_rare_line_is_always_marked() -> None:
    loop = Loop()
    for i in range(500):
        loop.run(2, *([3] if i % 100 == 0 else []), 4)
    assert loop.marked[3] == [True] * 5
    assert loop.marked[4] == loop.marked[2]
