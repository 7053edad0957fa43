"""The options on a magic's line: values in quotes, however they are joined to their option."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.errors import SpecError
from gpumagic.magics.cudatime.command import parser
from gpumagic.magics.parsing import parse_line, take_options
from gpumagic.selection import spec


@pytest.mark.parametrize(
    ("line", "setup", "name", "rest"),
    [
        ("-s 'x = 1' y", "x = 1", None, "y"),
        ("-s='x = 1' y", "x = 1", None, "y"),
        ("-s'x = 1' y", "x = 1", None, "y"),
        ("-s=x=1 y", "x=1", None, "y"),
        ("-sx=1 y", "x=1", None, "y"),
        ('--name="a b" y', None, "a b", "y"),
        ("--name=ab -s='x = 1' y = 'z'", "x = 1", "ab", "y = 'z'"),
        ("--name='a b';", None, "a b", ";"),
        ("-- -s='x'", None, None, "-s='x'"),
    ],
)
def test_a_value_in_quotes(line: str, setup: str | None, name: str | None, rest: str) -> None:
    taken, left = take_options(parser(), line)
    assert (taken.setup, taken.name, left) == (setup, name, rest)


@pytest.mark.parametrize("line", ['--name "dq".json"', "-s 'x'y z", "--name='a'b"])
def test_a_quotation_that_a_word_goes_on_behind(line: str) -> None:
    with pytest.raises(SpecError, match="no blank after the quotation in "):
        take_options(parser(), line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--save --repeat", "--save needs a value: --save FILE"),
        ("--name --repeat y", "--name needs a value: --name NAME"),
        ("--against --fail-above 10%", "--against needs a value: --against FILE"),
        ("--against --fail-above=10%", "--against needs a value: --against FILE"),
        ("-v --repeat y", "-v needs a value: -v NAME"),
        ("--save -oq y", "--save needs a value: --save FILE"),
        ("--save -q;", "--save needs a value: --save FILE"),
        ("--save -- y", "--save needs a value: --save FILE"),
    ],
)
def test_an_option_is_no_value(line: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        take_options(parser(), line)


def test_a_value_that_is_named_as_an_option() -> None:
    taken, rest = take_options(parser(), "--name '--repeat' --save=--flops -s -z y")
    assert (taken.name, taken.save, taken.setup, rest) == ("--repeat", "--flops", "-z", "y")
    assert (taken.repeated, taken.flops) == (False, False)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--save mit blank.json", "--save 'mit blank.json'"),
        ("-q --name my run;", "--name 'my run'"),
        ("--trace a b", "--trace 'a b'"),
        ("--save a.json y = 5", None),
        ("--save 'a' b.json", None),
        ("-v my result", None),
        ("--flops y", None),
        ("y", None),
    ],
)
def test_a_value_whose_quotes_are_missing(line: str, hint: str | None) -> None:
    found = parse_line(parser(), line, quiet=False).quotes_hint
    assert found == ("" if hint is None else f"; a value with a blank is in quotes: {hint}")


@pytest.mark.parametrize("magic", ["cudatime", "gpumem"])
def test_the_hint_is_part_of_the_message(magic: str, run_cell: Any) -> None:
    error = run_cell(f"%%{magic} --save mit blank.json\n1", raising=False).error
    assert type(error) is UsageError
    assert "'blank.json' belongs below, in the cell" in str(error)
    assert str(error).endswith("a value with a blank is in quotes: --save 'mit blank.json'")


@pytest.mark.parametrize("line", ["-s='x", '--name="a b', "-s'x"])
def test_a_quotation_that_is_not_closed(line: str) -> None:
    with pytest.raises(SpecError, match="no closing quotation"):
        take_options(parser(), line)


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("-q -s='x = 1' y", {"-q": True, "-s": "x = 1"}),
        ("-qn 2 -ov name y", {"-q": True, "-n": 2, "-o": True, "-v": "name"}),
        ("-qvname -w0 y", {"-q": True, "-v": "name", "-w": 0}),
        (
            "--targets 0:2 --precision=1% --kernels",
            {"-t": "0:2", "--precision": 0.01, "--kernels": True},
        ),
        ("y", {}),
    ],
)
def test_options_that_were_given(line: str, given: dict[str, object]) -> None:
    assert parser().given(take_options(parser(), line)[0]) == given


@pytest.mark.parametrize(
    ("line", "quiet", "loops", "rest"),
    [
        ("-qn 2 y", True, 2, "y"),
        ("-qn2 y", True, 2, "y"),
        ("-oqn 2", True, 2, ""),
        ("-qo y", True, None, "y"),
        ("-qo;", True, None, ";"),
        ("-n 2 -q -- -y", True, 2, "-y"),
    ],
)
def test_short_options_that_are_joined(
    line: str, quiet: bool, loops: int | None, rest: str
) -> None:
    options, left = take_options(parser(), line)
    assert (options.quiet, options.loops, left) == (quiet, loops, rest)


def test_joined_options_with_a_value() -> None:
    options, left = take_options(parser(), "-qs 'x = 1' y")
    assert (options.quiet, options.setup, left) == (True, "x = 1", "y")
    assert take_options(parser(), "-qs'x = 1' y")[0].setup == "x = 1"
    with pytest.raises(SpecError, match="-n"):
        take_options(parser(), "-qn")
    with pytest.raises(SpecError, match="'-2' is not a number of 1 or more"):
        parser().parse_words(["-qn", "-2"])


#: More digits than Python converts, more than a float has, and more than 64 bits hold.
@pytest.mark.parametrize("number", ["9" * 5000, "9" * 400, "9" * 20])
def test_a_number_that_is_too_large(number: str) -> None:
    for text in (number, f"0-{number}", f"{number}-", f"-{number}", f"auto {number}"):
        with pytest.raises(SpecError, match=f"has {len(number)} digits") as raised:
            spec.parse(text)
        assert len(str(raised.value)) < 100


def test_the_largest_numbers() -> None:
    assert spec.parse("999999999").items == (999_999_999,)
