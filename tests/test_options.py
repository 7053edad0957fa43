"""The options on a magic's line: values in quotes, however they are joined to their option."""

from __future__ import annotations

import pytest

from gpumagic.errors import SpecError
from gpumagic.magics.cudatime import parser
from gpumagic.magics.options import take_options, without_options


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
    options, left = take_options(parser(), line)
    assert (options.setup, options.name, left) == (setup, name, rest)


@pytest.mark.parametrize("line", ["-s='x", '--name="a b', "-s'x"])
def test_a_quotation_that_is_not_closed(line: str) -> None:
    with pytest.raises(SpecError, match="no closing quotation"):
        take_options(parser(), line)


def test_options_are_left_out_as_they_were_written() -> None:
    assert without_options(parser(), "-q -s='x = 1' y", {"-q"}) == "-s='x = 1'"
