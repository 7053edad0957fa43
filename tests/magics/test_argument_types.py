"""The values on a magic's line: types of arguments, and the variables in file names."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import (
    check_expanded,
    count,
    duration,
    duration_or_zero,
    excess,
    expanded,
    size,
    variable_name,
)

Type = Callable[[str], Any]
ENTRIES = count(most=10_000_000)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (count(), "1", 1),
        (count(0), "0", 0),
        (count(), "9" * 18, 10**18 - 1),
        (ENTRIES, "10000000", 10_000_000),
        (variable_name, "größe_1", "größe_1"),
        (excess, "10%", 0.1),
        (excess, "10 %", 0.1),
        (excess, "10", 0.1),
        (size, "20GiB", 20 * 2**30),
        (size, "20G", 20 * 2**30),
        (size, "500MB", 500 * 10**6),
        (size, "1.5 g", 3 * 2**29),
        (size, "64", 64),
        (size, "64b", 64),
        (size, "7kb", 7000),
        (size, "8000000T", 8_000_000 * 2**40),
        (duration, "0.5", 0.5),
        (duration, "500ms", 0.5),
        (duration, "2min", 120.0),
        (duration, "15m", 900.0),
        (duration, "1.5h", 5400.0),
        (duration, " 3 s ", 3.0),
        (duration, "5µs", 5e-6),
        (duration, "1000000s", 1e6),
        (duration, "3", 3.0),
        (duration, ".5", 0.5),
        (duration_or_zero, "0", 0.0),
        (duration_or_zero, "0ms", 0.0),
        (duration_or_zero, "7us", 7e-6),
    ],
)
def test_values(type_: Type, text: str, value: object) -> None:
    assert type_(text) == pytest.approx(value) if isinstance(value, float) else type_(text) == value
    assert type(type_(text)) is type(value)


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        (count(), "0", "'0' is not a number of 1 or more"),
        (count(), "1.0", "'1.0' is not a number of 1 or more"),
        (count(), "", "'' is not a number of 1 or more"),
        (ENTRIES, "10000001", "'10000001' is not a number from 1 to 10000000"),
        (variable_name, "a.b", "'a.b' is not a variable name"),
        (variable_name, "class", "'class' is not a variable name"),
        (excess, "x", "'x' is not a percentage; write 10%"),
        (excess, "0.1", "0.1 is 0.1 %; write that with its sign, or 10%"),
        (size, "much", "'much' is not a size; write 20GiB or 500MiB"),
        (size, "8388608T", "'8388608T' is more than any memory has"),
        (duration, "0s", "'0s' is not a time above 0; write 0.5s, 500ms or 2min"),
        (duration, "2min or so", "'2min or so' is not a time above 0; write 0.5s, 500ms or 2min"),
        (duration_or_zero, "soon", "'soon' is not a time; write 0.5s, 500ms or 2min"),
        (duration_or_zero, "inf", "'inf' is not a time; write 0.5s, 500ms or 2min"),
        (duration, "1000001", "'1000001' is too long; at most 1000000s"),
    ],
)
def test_messages(type_: Type, text: str, message: str) -> None:
    with pytest.raises(ArgumentTypeError) as raised:
        type_(text)
    assert str(raised.value) == message


#: More digits than Python converts, more than a float has, and more than 64 bits hold.
@pytest.mark.parametrize("number", ["9" * 5000, "9" * 400, "9" * 20])
@pytest.mark.parametrize("type_", [count(), ENTRIES, size, duration, duration_or_zero])
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
        *((each, each) for each in ("step.json", "price$", "$1.json", "{}.json")),
    ],
)
def test_variables_are_expanded_as_ipython_does(ip: Any, text: str, name: str) -> None:
    ip.user_ns.update(name="step", number=7)
    assert expanded(ip, text) == name


@pytest.mark.parametrize("text", ["$fn", "a-{fn}.json", "{shell}/{text}"])
def test_a_variable_that_is_not_there_is_refused(ip: Any, text: str) -> None:
    for check in (lambda: expanded(ip, text), lambda: check_expanded(text)):
        with pytest.raises(SpecError, match=r"cannot be expanded; set \w+ first"):
            check()


@pytest.mark.parametrize("line", ["%%cudatime --save {}", "%%gpumem --against {}"])
def test_no_cell_runs_with_such_a_name(
    ip: Any, run_cell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run_cell(f"{line.format('$fn')}\nhas_run = True", raising=False)
    assert "'$fn' cannot be expanded" in str(ran.error)
    assert "has_run" not in ip.user_ns
    assert list(tmp_path.iterdir()) == []
