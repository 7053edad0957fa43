"""The search for the largest value, against allocators of known behaviour."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpumagic.memory.fit import RUNS, FitSearch, fitted
from gpumagic.results.fit import FitRun

MIB = 2**20


def searched(
    peak: Callable[[int], int], room: int, low: int, high: int, known: int | None = None
) -> FitSearch:
    """Run a search where memory runs out above ``room``, and the search knows of ``known``."""
    search = FitSearch(low, high, room if known is None else known)
    while (value := search.next()) is not None:
        assert low <= value <= high
        assert value not in [run.value for run in search.runs], "no value runs twice"
        needed = peak(value)
        search.add(value, needed if needed <= room else None)
    return search


def true_largest(peak: Callable[[int], int], room: int, low: int, high: int) -> int | None:
    fitting = [value for value in range(low, high + 1) if peak(value) <= room]
    return max(fitting) if fitting else None


def rounded(value: int) -> int:
    """What torch's allocator makes of a size above 10 MiB: whole 2 MiB."""
    return -(-value // (2 * MIB)) * 2 * MIB


@pytest.mark.parametrize(
    "peak",
    [
        lambda n: n * MIB,
        lambda n: 100 * MIB + n * 3 * MIB,
        lambda n: rounded(n * MIB),
        lambda n: 50 * MIB + rounded(n * 700_001),
        lambda n: n * MIB + (300 * MIB if n > 64 else 0),  # another algorithm from there on
    ],
    ids=["line", "offset", "rounded", "odd", "step"],
)
@pytest.mark.parametrize("room", [1, 64 * MIB, 1000 * MIB, 40_000 * MIB])
@pytest.mark.parametrize(("low", "high"), [(1, 4096), (1, 1), (16, 512), (0, 100)])
@pytest.mark.parametrize("known", [None, 2000 * MIB, 100 * MIB])
def test_the_largest_value_is_found(
    peak: Callable[[int], int], room: int, low: int, high: int, known: int | None
) -> None:
    """Also where more or less memory was expected than there is."""
    search = searched(peak, room, low, high, known)
    best = true_largest(peak, room, low, high)
    assert len(search.runs) <= RUNS
    if best is None:
        assert search.largest is None
        assert len(search.runs) == 1
    elif search.is_exact:
        assert search.largest == best
    else:  # the runs are used up: what ran did run, and close
        assert len(search.runs) == RUNS
        assert search.largest is not None
        assert best * (0.9 if known is None else 0.7) <= search.largest <= best


@pytest.mark.parametrize(
    "peak",
    [
        lambda n: rounded(64 * n * n),
        lambda n: rounded(64 * n * n) + rounded(n * 32768),
        lambda n: 500 * MIB + 3 * rounded(4 * n * n),
        lambda n: rounded(4 * n**3),
    ],
    ids=["square", "square and line", "square above an offset", "cube"],
)
@pytest.mark.parametrize("room", [1000 * MIB, 15 * 2**30])
@pytest.mark.parametrize(("low", "high"), [(1, 65536), (128, 8192)])
def test_what_grows_faster_than_a_line(
    peak: Callable[[int], int], room: int, low: int, high: int
) -> None:
    search = searched(peak, room, low, high)
    best = true_largest(peak, room, low, high)
    assert best is not None
    assert len(search.runs) <= RUNS
    if search.is_exact:
        assert search.largest == best
    else:  # the peak stays the same for several values there
        assert search.largest is not None
        assert 0.995 * best <= search.largest <= best


def test_the_power_of_the_curve() -> None:
    for power in (0.5, 1.0, 2.0, 3.0):
        runs = [FitRun(n, round(1000 + 7 * n**power)) for n in (10, 1000, 100_000)]
        curve = fitted(runs)
        assert curve is not None
        assert curve.power == pytest.approx(power, abs=0.01)
        assert curve.largest(runs[-1].peak or 0) == pytest.approx(100_000, rel=1e-3)


@pytest.mark.parametrize("per_unit", [MIB, 3 * MIB + 17, 700_001])
def test_a_line_takes_few_runs(per_unit: int) -> None:
    search = searched(lambda n: 64 * MIB + n * per_unit, 9000 * MIB, 1, 65536)
    assert search.is_exact
    assert len(search.runs) <= 6


def test_the_line() -> None:
    assert fitted([FitRun(1, 150), FitRun(2, 200), FitRun(9, None)]) == (100, 50, 1)
    assert fitted([FitRun(1, 150), FitRun(2, None)]) is None
