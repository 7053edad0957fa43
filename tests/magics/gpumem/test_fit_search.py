"""The search for the largest value that fits: few runs, and the truth about what is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpumagic.magics.gpumem.fit_result import FitRun
from gpumagic.magics.gpumem.fit_search import RUNS, FitSearch

MIB, GIB = 2**20, 2**30
Peak = Callable[[int], float]


def search(peak: Peak, high: int, room: float, available: float | None) -> FitSearch:
    """The search at its end; ``available`` is what the allocator says, ``room`` what there is."""
    found = FitSearch(1, high)
    while (value := found.next()) is not None:
        assert value not in [run.value for run in found.runs]
        needed = round(peak(value))
        found.runs.append(FitRun(value, needed if needed <= room else None))
        found.available = None if available is None else round(available)
    return found


PEAKS: dict[str, Peak] = {
    "a line": lambda n: 4 * MIB * n,
    "with a constant part": lambda n: 2 * MIB * n + 300 * MIB,
    "in segments": lambda n: (int(n * 3.3 / 20) + 1) * 20 * MIB,
    "a parabola": lambda n: 300 * MIB + 1000 * n + 40 * n * n,
}


@pytest.mark.parametrize("peak", PEAKS.values(), ids=PEAKS)
@pytest.mark.parametrize("room", [1.9 * GIB, 15.61 * GIB, 79 * GIB])
@pytest.mark.parametrize("known", [0.9, 0.98, 1, 1.02, 1.1])
def test_within_two_percent(peak: Peak, room: float, known: float) -> None:
    """Also where there is less memory than is known of, or more: fragments, rounding."""
    for high in (50, 4096, 100_000):
        found = search(peak, high, room, room * known)
        largest = max(n for n in range(1, high + 1) if n <= 2**17 and peak(n) <= room)
        assert found.largest is not None
        assert found.largest <= largest
        assert largest <= found.largest * (1.02 if found.largest >= 64 else 1)
        assert len(found.runs) <= RUNS
        assert found.is_exact or found.largest >= 64


def test_it_stays_in_its_range() -> None:
    """Also where nearly all of it is predicted to fit."""
    for high in range(2, 3000, 7):
        found = search(PEAKS["a line"], high, 16 * GIB, 4 * MIB * high * 0.99)
        assert max(run.value for run in found.runs) == found.largest == high
        assert found.is_exact


def test_without_knowing_the_memory() -> None:
    found = search(PEAKS["a line"], 4096, 16 * GIB, None)
    assert found.largest is not None
    assert 4000 <= found.largest <= 4096


def test_what_is_not_found_in_so_many_runs_is_not_exact() -> None:
    found = search(lambda n: n**1.5, 10**9, 1.9 * GIB, 1.7 * GIB)
    assert (found.is_exact, len(found.runs)) == (False, RUNS)
    assert found.largest is not None
    assert found.largest**1.5 <= 1.9 * GIB
