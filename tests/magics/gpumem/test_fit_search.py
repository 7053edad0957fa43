"""The search for the largest value that fits: few runs, and the truth about what is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpumagic.magics.gpumem.fit import RUNS, FitSearch
from gpumagic.results.allocator import FitRun

MIB, GIB = 2**20, 2**30


def search(
    peak: Callable[[int], float], high: int, room: float, available: int | None
) -> tuple[int | None, bool, int]:
    """The largest value, whether it is exact, and how many runs it took."""
    found = FitSearch(1, high)
    while (value := found.next()) is not None:
        needed = round(peak(value))
        found.runs.append(FitRun(value, needed if needed <= room else None))
        found.available = available
    return found.largest, found.is_exact, len(found.runs)


@pytest.mark.parametrize(
    ("peak", "high", "room", "available", "expected"),
    [
        (lambda n: 4 * MIB * n, 100_000, 80 * GIB, 80 * GIB, (20480, True, 4)),
        # There is a little less than was thought: fragments, rounding.
        (lambda n: 4 * MIB * n, 100_000, 79.9 * GIB, 80 * GIB, (20454, True, 11)),
        (lambda n: 2 * MIB * n + 300 * MIB, 4096, 1.9 * GIB, 2 * GIB, (822, True, 14)),
        (lambda n: 2 * MIB * n, 4096, 200 * GIB, 200 * GIB, (4096, True, 3)),
        (lambda n: n * n, 65536, 4 * GIB, 4 * GIB, (65536, True, 3)),
        (lambda n: 2 * MIB * n, 8, MIB, GIB, (None, False, 1)),
    ],
)
def test_the_largest_value(
    peak: Callable[[int], float], high: int, room: float, available: int, expected: object
) -> None:
    assert search(peak, high, room, available) == expected


def test_what_is_not_found_in_so_many_runs_is_not_exact() -> None:
    largest, exact, runs = search(lambda n: n**1.5, 10**9, 16 * GIB, 16 * GIB)
    assert (exact, runs) == (False, RUNS)
    assert largest is not None
    assert largest**1.5 <= 16 * GIB
