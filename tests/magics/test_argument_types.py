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
LENGTH, OR_ZERO = duration, duration_or_zero


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (count, "1", 1),
        (partial(count, least=0), "0", 0),
        (count, "999999999", 10**9 - 1),
        (variable_name, "größe_1", "größe_1"),
        (excess, "10%", 0.1),
        (excess, "10 %", 0.1),
        (excess, "10", 0.1),
        (size, "20GiB", 20 * 2**30),
        (size, "20G", 20 * 2**30),
        (size, "500MB", 500 * 10**6),
        (size, "1.5 g", 3 * 2**29),
        (size, "2097152", 2**21),
        (size, "64b", 64),
        (size, "7kb", 7000),
        (size, "8000000T", 8_000_000 * 2**40),
        (LENGTH, "0.5", 0.5),
        (LENGTH, "500ms", 0.5),
        (LENGTH, "2min", 120.0),
        (LENGTH, "15m", 900.0),
        (LENGTH, "1.5h", 5400.0),
        (LENGTH, " 3 s ", 3.0),
        (LENGTH, "5µs", 5e-6),
        (LENGTH, "1000000s", 1e6),
        (LENGTH, "3", 3.0),
        (LENGTH, ".5", 0.5),
        (OR_ZERO, "0", 0.0),
        (OR_ZERO, "0ms", 0.0),
        (OR_ZERO, "7us", 7e-6),
    ],
)
def test_values(type_: Type, text: str, value: object) -> None:
    assert type_(text) == pytest.approx(value) if isinstance(value, float) else type_(text) == value
    assert type(type_(text)) is type(value)


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        (count, "0", "'0' is not a number from 1 to 999,999,999"),
        (count, "1.0", "'1.0' is not a number from 1 to 999,999,999"),
        (count, "", "'' is not a number from 1 to 999,999,999"),
        (variable_name, "a.b", "'a.b' is not a variable name"),
        (variable_name, "class", "'class' is not a variable name"),
        (excess, "x", "'x' is not a percentage; write 10%"),
        (excess, "0.1", "0.1 is 0.1 %; write that with its sign, or 10%"),
        (size, "64", "'64' has no unit; write 64GiB"),
        (size, "much", "'much' is not a size; write 20GiB or 500MiB"),
        (size, "8388608T", "'8388608T' is more than any memory has"),
        (LENGTH, "0s", "'0s' is not a time above 0; write 0.5s, 500ms or 2min"),
        (LENGTH, "2min or so", "'2min or so' is not a time; write 0.5s, 500ms or 2min"),
        (OR_ZERO, "soon", "'soon' is not a time; write 0.5s, 500ms or 2min"),
        (OR_ZERO, "inf", "'inf' is not a time; write 0.5s, 500ms or 2min"),
        (LENGTH, "1000001", "'1000001' is too long; at most 1000000s"),
    ],
)
def test_messages(type_: Type, text: str, message: str) -> None:
    with pytest.raises(ArgumentTypeError) as raised:
        type_(text)
    assert str(raised.value) == message


#: More digits than Python converts, more than a float has, and more than 64 bits hold.
@pytest.mark.parametrize("number", ["9" * 5000, "9" * 400, "9" * 20])
@pytest.mark.parametrize("type_", [count, size, LENGTH])
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
