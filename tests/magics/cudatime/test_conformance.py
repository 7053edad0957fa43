"""What ``%%time`` does, case by case, and ``%%cudatime`` does the same: both are run."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from IPython import version_info

from tests.magics.cudatime.conformance import BETTER, CASES, CHECKS, MAGICS, RAISES, outcomes

SILENT = ("a trailing semicolon", "a semicolon and a comment", "a semicolon")


@pytest.mark.parametrize("magic", ["cudatime", "cudatime --lines"])
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, magic: str, ip: Any) -> None:
    expected, _, ours = outcomes(name, ip, magic)
    if (error := RAISES.get(name.partition(": ")[2])) is not None:
        assert (ours.error, ours.timed) == (error, True)
        expected = replace(expected, timed=True)  # not so every IPython's own, if interrupted
    if version_info < (8,) and name.partition(": ")[2] in SILENT:
        expected = replace(
            expected, value="None"
        )  # IPython 7's %%time shows the value all the same
    assert ours == expected


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("name", CHECKS)
def test_check(name: str, magic: str, ip: Any) -> None:
    CHECKS[name](magic, ip)


# Better than %%time.


@pytest.mark.parametrize("magic", ["cudatime", "cudatime --lines", "cudatime -n 1 -r 1 -w 0"])
@pytest.mark.parametrize("name", BETTER)
def test_better(name: str, magic: str, ip: Any) -> None:
    BETTER[name](magic, ip)


def test_compiling_is_not_timed(ip: Any, run_cell: Any, clock: None) -> None:
    """%%time compiles the last expression while its clock runs."""

    class Slow(type(ip.compile)):  # type: ignore[misc]
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            time.sleep(0.5)
            return super().__call__(*arguments, **options)

    ip.compile.__class__ = Slow
    timing = run_cell("%%cudatime -o -q\nname = 1\nname + 1").value
    assert timing.compile_time >= 2 * 0.5  # the statements, and the last expression
    assert timing.wall.median < 0.01
