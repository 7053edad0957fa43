"""The statistics behind the repeats: intervals, drift, outliers."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest

from gpumagic.timing import stopping_rule


@pytest.mark.parametrize(
    ("count", "rank"),
    # Tables of the sign test's confidence interval for the median, 95 %.
    [
        (5, 0),
        (6, 1),
        (8, 1),
        (9, 2),
        (10, 2),
        (12, 3),
        (15, 4),
        (20, 6),
        (25, 8),
        (50, 18),
        (100, 40),
    ],
)
def test_ranks_are_those_of_the_tables(count: int, rank: int) -> None:
    interval = stopping_rule.median_interval([float(i) for i in range(1, count + 1)])
    assert interval == (None if rank == 0 else (rank, count + 1 - rank))


def test_the_normal_limit_follows_the_exact_ranks() -> None:
    ranks = [stopping_rule._rank(n) for n in range(90, 112)]
    assert all(0 <= after - before <= 1 for before, after in itertools.pairwise(ranks))


@pytest.mark.parametrize("draw", ["normal", "lognormal", "two clocks"])
def test_the_interval_covers_the_median_as_often_as_it_says(draw: str) -> None:
    chance = random.Random(7)
    draws = {
        "normal": (lambda: chance.gauss(10, 1), 10.0),
        "lognormal": (lambda: chance.lognormvariate(0, 1), 1.0),
        "two clocks": (
            lambda: chance.gauss(10, 0.1) * (1.5 if chance.random() < 0.3 else 1),
            10.056,
        ),
    }
    one, median = draws[draw]
    hits = 0
    for _ in range(600):
        low, high = stopping_rule.median_interval([one() for _ in range(31)]) or (0, 0)
        hits += low <= median <= high
    assert hits / 600 >= 0.93


def test_half_width() -> None:
    assert stopping_rule.half_width([]) is None
    assert stopping_rule.half_width([1.0] * 5) is None
    assert stopping_rule.half_width([0.0] * 10) is None
    assert stopping_rule.half_width([2.0] * 10) == 0
    assert stopping_rule.half_width([9.0, 9.0, *[10.0] * 6, 11.0, 11.0]) == pytest.approx(0.1)


def test_tests_become_rarer() -> None:
    looks = [0]
    while looks[-1] < 1000:
        looks.append(stopping_rule.next_look(looks[-1]))
    assert looks[1] == stopping_rule.FIRST_LOOK
    assert len(looks) < 30


def test_drift_is_found() -> None:
    chance = random.Random(1)
    warming = [1 + 0.1 * i / 40 + chance.gauss(0, 0.005) for i in range(40)]
    assert stopping_rule.drift(warming) == pytest.approx(0.05, abs=0.02)
    assert stopping_rule.drift(warming[::-1]) == pytest.approx(-0.05, abs=0.02)


def test_noise_is_no_drift() -> None:
    chance = random.Random(2)
    assert stopping_rule.drift([]) is None
    assert stopping_rule.drift([1.0, 2.0]) is None
    assert stopping_rule.drift([1.0] * 30) is None
    # A difference that is sure, but too small to matter.
    assert stopping_rule.drift([1.0] * 20 + [1.01] * 20) is None
    found = sum(
        stopping_rule.drift([chance.lognormvariate(0, 0.2) for _ in range(40)]) is not None
        for _ in range(400)
    )
    assert found / 400 < 0.03


def test_outliers() -> None:
    values = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.0]
    assert stopping_rule.outliers(values) == ()
    assert stopping_rule.outliers([*values, 3.0]) == (3.0,)
    assert stopping_rule.outliers([*values, 0.2]) == (0.2,)
    # A spread of nothing makes nothing an outlier that is within 5 %.
    assert stopping_rule.outliers([1.0] * 20 + [1.04]) == ()
    assert stopping_rule.outliers([1.0, 9.0]) == ()
    assert statistics.median([*values, 3.0]) == 1.0
