"""Timings side by side: the statistics, and what is compared."""

from __future__ import annotations

import math
import random
from itertools import combinations
from statistics import median
from typing import Any

import pytest

import gpumagic
from gpumagic.errors import SpecError
from gpumagic.results import CudaTiming, Sample
from gpumagic.timing.ratio import _ways, median_ratio, ratio_interval


def timing(*values: float, wall: float = 1.1, **fields: Any) -> CudaTiming:
    sample = Sample(values)
    whole = {
        "gpu": sample,
        "wall": Sample(tuple(wall * value for value in values)),
        "cpu": sample,
        "repeat": len(values),
        "loops": 1000,
    }
    return CudaTiming(**{**whole, **fields})


def about(center: float, count: int = 7, spread: float = 0.01, seed: int = 0) -> CudaTiming:
    chance = random.Random(seed)
    return timing(*(chance.gauss(center, center * spread) for _ in range(count)))


# The statistics.


def test_the_test_is_mann_whitneys() -> None:
    """In how many orders of n and m values the statistic takes each value, by counting them."""
    for n, m in ((1, 1), (2, 3), (4, 4), (5, 3)):
        counted = [0] * (n * m + 1)
        for places in combinations(range(n + m), n):
            counted[sum(place - i for i, place in enumerate(places))] += 1
        assert _ways(n, m) == counted


def test_the_interval_covers_the_ratio_as_often_as_it_says() -> None:
    """In 95 of 100 cases the true ratio lies in it, whatever the distribution."""
    chance = random.Random(7)
    for n, m, rounds in ((7, 9, 400), (40, 50, 200)):
        hits = 0
        for _ in range(rounds):
            ours = [2 * chance.lognormvariate(0, 0.5) for _ in range(n)]
            theirs = [chance.lognormvariate(0, 0.5) for _ in range(m)]
            low, high = ratio_interval(ours, theirs) or (math.nan, math.nan)
            hits += low <= 2 <= high
        assert hits / rounds > 0.92


def test_the_same_row_twice_is_not_different() -> None:
    low, high = ratio_interval([1.0, 1.1, 1.2, 1.3], [1.0, 1.1, 1.2, 1.3]) or (0, 0)
    assert low <= 1 <= high
    assert ratio_interval([2.0] * 4, [1.0] * 4) == pytest.approx((2, 2))


def test_the_interval_of_the_inverse_is_the_inverse() -> None:
    chance = random.Random(5)
    ours, theirs = ([chance.lognormvariate(0, 0.5) for _ in range(8)] for _ in range(2))
    low, high = ratio_interval(ours, theirs) or (0, 0)
    assert ratio_interval(theirs, ours) == pytest.approx((1 / high, 1 / low))
    assert high < max(ours) / min(theirs)


@pytest.mark.parametrize("count", [20, 60])
def test_more_confidence_is_a_wider_interval(count: int) -> None:
    """Also above the number of pairs where the exact computation ends."""
    chance = random.Random(11)
    rows = [[chance.gauss(1, 0.1) for _ in range(count)] for _ in range(2)]
    low, high = ratio_interval(rows[0], rows[1], 0.5) or (0, 0)
    lower, higher = ratio_interval(rows[0], rows[1], 0.99) or (0, 0)
    assert lower < low < high < higher


def test_too_few_cannot_tell() -> None:
    assert ratio_interval([1.0] * 3, [2.0] * 3) is None
    assert ratio_interval([1.0], [2.0] * 30) is None
    assert ratio_interval([1.0] * 4, [2.0] * 4) is not None


def test_the_normal_limit_agrees_with_the_exact_test() -> None:
    """Above and below the number of pairs where the exact computation ends, nearly the same."""
    chance = random.Random(3)
    rows = [[chance.gauss(1, 0.1) for _ in range(31)] for _ in range(2)]
    many = ratio_interval(rows[0], rows[1]) or (0, 0)
    few = ratio_interval(rows[0][:30], rows[1][:30]) or (0, 0)
    assert many == pytest.approx(few, abs=0.02)


# The comparison.


def test_faster_slower_and_neither() -> None:
    compared = gpumagic.compare(
        {"a": about(0.01), "b": about(0.005, seed=1), "c": about(0.01, seed=2), "d": about(0.02)}
    )
    assert [entry.verdict for entry in compared] == [None, "faster", "noise", "slower"]
    assert compared.quantity == "gpu"
    assert compared.baseline == "a"
    assert compared["b"].ratio == pytest.approx(0.5, rel=0.02)
    low, high = compared["d"].interval
    assert low <= compared["d"].ratio <= high
    assert compared[0].ratio == 1
    with pytest.raises(KeyError):
        _ = compared["x"]


def test_the_ratio_is_not_at_the_edge_of_its_interval() -> None:
    """Of repeats at two clocks the ratio of the medians is that of one slow and one fast repeat."""
    fast, slow = [1.0, 1.01, 1.02, 1.03, 1.6, 1.61, 1.62], [1.0, 1.01, 1.02, 1.6, 1.61, 1.62, 1.63]
    (_, entry) = gpumagic.compare({"fast": timing(*fast), "slow": timing(*slow)})
    assert entry.interval == ratio_interval(slow, fast)
    assert entry.interval[0] < entry.ratio < entry.interval[1]
    assert entry.ratio == pytest.approx(median(a / b for a in slow for b in fast), rel=1e-9)
    assert entry.ratio < 1.1 < median(slow) / median(fast)


def test_the_median_of_many_ratios_is_that_of_all() -> None:
    chance = random.Random(3)
    for n, m in ((1, 1), (2, 3), (31, 40), (32, 40)):
        ours, theirs = ([chance.lognormvariate(0, 0.5) for _ in range(k)] for k in (n, m))
        ratios = sorted(math.log(a / b) for a in ours for b in theirs)
        assert math.log(median_ratio(ours, theirs)) == pytest.approx(median(ratios), abs=1e-9)


def test_another_baseline_comes_first() -> None:
    compared = gpumagic.compare({"a": about(0.01), "b": about(0.02)}, baseline="b")
    assert [entry.name for entry in compared] == ["b", "a"]
    assert compared["a"].verdict == "faster"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"gpu": None}, "b has no GPU time"),
        ({"gpu_at_most": True}, "the GPU time of b is an upper bound"),
    ],
)
def test_wall_times_where_gpu_times_cannot_be_compared(fields: Any, says: str) -> None:
    """An upper bound has no ratio to a time: a quantity that both have is compared."""
    slow = timing(0.02, 0.021, 0.022, 0.0205, wall=1.5, **fields)
    compared = gpumagic.compare({"a": timing(0.01, 0.011, 0.012, 0.0105, wall=1.0), "b": slow})
    assert compared.quantity == "wall"
    assert says in str(compared)
    assert compared["b"].ratio == pytest.approx(0.031125 / 0.01075, rel=1e-2)


def test_a_difference_below_the_resolution_of_events_is_noise() -> None:
    one, other = timing(*[10.0e-6] * 5, loops=1), timing(*[10.4e-6] * 5, loops=1)
    assert gpumagic.compare({"a": one, "b": other})["b"].verdict == "noise"
    one, other = timing(*[10.0e-6] * 5, loops=99), timing(*[10.4e-6] * 5, loops=99)
    assert gpumagic.compare({"a": one, "b": other})["b"].verdict == "slower"


def test_single_runs_have_a_ratio_and_no_verdict() -> None:
    compared = gpumagic.compare({"a": timing(0.01), "b": timing(0.03)})
    assert compared["b"].ratio == pytest.approx(3)
    assert compared["b"].verdict is compared["b"].interval is None
    says = "too few repeats to distinguish a difference from noise: a has 1, b has 1; 4 or more of"
    assert says in str(compared)


def test_the_timing_with_too_few_repeats_is_named() -> None:
    compared = gpumagic.compare({"once": timing(0.01), "often": about(0.03)})
    assert "noise: once has 1; 4 or more of each are enough (-r 4)" in compared.notes[-1]
    assert gpumagic.compare(timing(0.0), timing(0.01)).notes[0] == (
        "there is no ratio to a time of 0 s: 1"
    )


def test_a_direction_that_the_medians_do_not_have_is_noise() -> None:
    """Times at two levels: by the pairs of repeats faster, by the medians slower."""
    base = [1.0] * 20 + [2.0] * 21 + [2.4] * 20
    now = [0.9] * 30 + [2.01] * 31
    low, high = ratio_interval(now, base) or (0, 0)
    assert low < high < 1
    compared = gpumagic.compare({"a": timing(*base), "b": timing(*now)})
    assert median(now) > median(base)
    assert compared["b"].verdict == "noise"
    assert "faster" not in str(compared)
    assert "slower" not in str(compared)
    few = gpumagic.compare(timing(1.0, 2.0, 2.1), timing(0.9, 2.05, 1.3))
    assert median_ratio((0.9, 2.05, 1.3), (1.0, 2.0, 2.1)) < 1
    assert few[1].ratio is not None
    few = gpumagic.compare(timing(1.0, 2.0, 9.0), timing(0.9, 2.01, 2.02))
    assert median_ratio((0.9, 2.01, 2.02), (1.0, 2.0, 9.0)) < 1
    assert few[1].ratio is None


@pytest.mark.parametrize("value", [1e-320, 1e300, 1e308, math.inf])
def test_times_that_no_clock_gives_are_refused(value: float) -> None:
    hostile = timing(*[value] * 8)
    for pair in ((hostile, about(1.0)), (about(1.0), hostile), (hostile, hostile)):
        with pytest.raises(SpecError, match=r"no clock gives a time of"):
            gpumagic.compare(*pair)


def test_a_row_of_very_many_repeats() -> None:
    """The loop is over the shorter row."""
    chance = random.Random(1)
    long, short = ([chance.gauss(1, 0.1) for _ in range(n)] for n in (5000, 7))
    for one, other in ((long, short), (short, long)):
        ratios = sorted(a / b for a in one for b in other)
        assert median_ratio(one, other) == pytest.approx(median(ratios))


def test_nothing_to_compare() -> None:
    with pytest.raises(gpumagic.SpecError, match=r"^1 timing to compare, but it takes two or more"):
        gpumagic.compare({"a": timing(1.0)})
    with pytest.raises(gpumagic.SpecError, match=r"^0 timings to compare"):
        gpumagic.compare({})
    with pytest.raises(gpumagic.SpecError, match="no timing 'c' to compare with; there are a, b"):
        gpumagic.compare({"a": timing(1.0), "b": timing(1.0)}, baseline="c")
