"""How often to run: contradictions, round numbers, the interval of a median."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpumagic.errors import SpecError
from gpumagic.timing.precision import LEAST_REPEATS, half_width, median_interval
from gpumagic.timing.repeated.repeat_plan import Plan, round_up


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"loops": 0}, "n is 0, but must be a whole number, 1 or more"),
        ({"asked_repeats": 2.5}, "r is 2.5, but must be a whole number, 1 or more"),
        ({"warmup": -1}, "w is -1, but must be a whole number, 0 or more"),
        ({"max_time": 0}, "max_time is 0, but must be seconds above 0"),
        ({"max_time": "2s"}, "max_time is '2s', but must be seconds above 0"),
        ({"asked_repeats": 5, "max_time": 1}, "-r 5 .* and --max-time .* leave one"),
        ({"loops": 5, "cold": True}, "leave -n 5"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        Plan(**fields)


def test_numbers_are_round() -> None:
    assert [round_up(value) for value in (0.1, 1, 1.5, 3, 6, 20, 21)] == [1, 1, 2, 5, 10, 20, 50]


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    """In 95 of 100 cases, whatever the distribution; also where ranks are approximated."""
    chance = random.Random(7)
    for count in (LEAST_REPEATS, 11, 40, 150):
        hits = 0
        for _ in range(400):
            found = median_interval([chance.lognormvariate(0, 1) for _ in range(count)])
            hits += found is not None and found[0] <= 1 <= found[1]
        assert hits / 400 > 0.92
    assert median_interval([1.0] * (LEAST_REPEATS - 1)) is None


def test_the_width_is_a_part_of_the_median() -> None:
    widths = [half_width(values) for values in ([1.0] * 5 + [1.2], [1.0] * 5, [0.0] * 9, [])]
    assert widths == [pytest.approx(0.1), None, None, None]
