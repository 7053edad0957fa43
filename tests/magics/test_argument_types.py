"""The values on a magic's line: types of arguments, and the variables in file names."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import (
    count,
    duration,
    duration_or_zero,
    excess,
    expanded,
    size,
    variable_name,
)

Type = Callable[[str], Any]


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (count, "1", 1),
        (partial(count, least=0), "0", 0),
        (variable_name, "größe_1", "größe_1"),
        (excess, "10%", 0.1),
        (excess, "10", 0.1),
        (size, "20GiB", 20 * 2**30),
        (size, "500MB", 500 * 10**6),
        (size, "1.5 g", 3 * 2**29),
        (size, "7kb", 7000),
        (duration, "0.5", 0.5),
        (duration, "500ms", 0.5),
        (duration, "2min", 120.0),
        (duration, " 3 s ", 3.0),
        (duration, "5µs", 5e-6),
        (duration_or_zero, "0", 0.0),
    ],
)
def test_values(type_: Type, text: str, value: object) -> None:
    assert type_(text) == pytest.approx(value) if isinstance(value, float) else type_(text) == value
    assert type(type_(text)) is type(value)


#: More digits than Python converts, more than a float has, and more than 64 bits hold.
@pytest.mark.parametrize("number", ["9" * 5000, "9" * 400, "9" * 20])
@pytest.mark.parametrize("type_", [count, size, duration])
def test_a_number_that_is_too_large(type_: Type, number: str) -> None:
    with pytest.raises(ArgumentTypeError) as raised:
        type_(number)
    assert len(str(raised.value)) < 100
    with pytest.raises(ArgumentTypeError):
        type_(f"{number}T")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("$name", "step"),
        ("{name}.json", "step.json"),
        ("run-{number + 1}", "run-8"),
        ("$$name", "$name"),
        ("{{name}}", "{name}"),
        *((each, each) for each in ("step.json", "price$", "$1.json", "{}.json", "$not_there")),
        *((each, each) for each in ("d = {'a': 1}", "{i: 0 for i in x}")),
    ],
)
def test_variables_are_expanded_as_ipython_does(text: str, name: str) -> None:
    assert expanded(text, {"name": "step", "number": 7}) == name


def test_a_name_that_is_no_variable() -> None:
    """Literal, each result of a loop would replace the last."""
    with pytest.raises(SpecError, match=r"bs-.bz.: there is no variable 'bz'"):
        expanded("bs-{bz}", {"bs": 1})
