"""The decisions of a plan, and the numbers that it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.errors import SpecError
from gpumagic.timing.plan import DEFAULT_REPEAT, Plan, round_up


@pytest.mark.parametrize(
    ("fields", "open_end", "repeats", "exact"),
    [
        ({}, True, DEFAULT_REPEAT, False),
        ({"loops": 3}, False, DEFAULT_REPEAT, False),
        ({"repeat": 4}, False, 4, False),
        ({"warmup": 2}, True, DEFAULT_REPEAT, False),
        ({"loops": 3, "precision": 0.1}, True, DEFAULT_REPEAT, False),
        ({"loops": 3, "max_time": 1.0}, True, DEFAULT_REPEAT, False),
        ({"loops": 3, "repeat": 4, "warmup": 0}, False, 4, True),
        ({"repeat": 4, "warmup": 0}, False, 4, True),
    ],
)
def test_what_ends_the_repeats(
    fields: dict[str, Any], open_end: bool, repeats: int, exact: bool
) -> None:
    plan = Plan(**fields)
    assert (plan.open_end, plan.repeats, plan.exact) == (open_end, repeats, exact)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"loops": 0}, "n is 0, but must be 1 or more"),
        ({"repeat": 0}, "r is 0, but must be 1 or more"),
        ({"warmup": -1}, "w is -1, but must be 0 or more"),
        ({"repeat": "3"}, "r is a str, but must be a whole number"),
        ({"loops": 2.0}, "n is a float, but must be a whole number"),
        ({"precision": "1%"}, "precision is a str, but must be a part of the median, as 0.01"),
        ({"max_time": "1s"}, "max_time is a str, but must be seconds, as 2"),
        ({"precision": 0.0}, "precision is 0, but must be above 0"),
        ({"max_time": float("nan")}, "max_time is nan, but must be above 0"),
        ({"repeat": 5, "precision": 0.1}, "leave nothing for --precision"),
        ({"repeat": 5, "max_time": 1.0}, "leave nothing for --max-time"),
        ({"cold": True, "loops": 5}, "leave -n 5"),
    ],
)
def test_invalid_plans_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as raised:
        Plan(**fields)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("value", "expected"), [(0.5, 1), (1, 1), (3, 5), (5.001, 5), (11, 20)])
def test_loops_are_round_numbers(value: float, expected: int) -> None:
    assert round_up(value) == expected
