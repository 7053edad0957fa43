"""The plan of a cell, written as the line of a magic."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.cluster.cell_plan import CellPlan
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime.options import grammar


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"-n": 5, "-r": 3, "-w": 0},
        {"--repeat": True, "--cold": True},
        {"--precision": 0.01, "--max-time": 1e-5},
        {"--precision": 0.1 + 0.2, "--max-time": 120.0},
        {"-s": "x = 1", "--kernels": True},
        *({"-s": text} for text in ("a -w b", "-1", "x;", ";", "it's", 'say "x"', "a\nb", "'")),
        {"--nvtx": "-name", "--barrier": True},
    ],
)
def test_the_magic_reads_what_was_written(options: dict[str, Any]) -> None:
    line, cell = CellPlan("cudatime", "1", options, setup="-x = 2; 'y'").arguments()
    read = grammar().read(f"-q -v NAME {line}", cell=True)
    given, rest = dict(read.given), read.code
    assert (given.pop("-q"), given.pop("-v")) == (True, "NAME")
    assert given == pytest.approx(options)
    assert (rest, cell) == ("-x = 2; 'y'", "1")
    line, cell = CellPlan("cudatime", "-3 + 4", options, is_statement=True).arguments()
    read = grammar().read(line)
    assert read.given == pytest.approx(options)
    rest = read.code
    assert (rest, cell) == ("-3 + 4", None)


def test_both_kinds_of_quotes() -> None:
    plan = CellPlan("cudatime", "1", {"-s": "print('it', \"is\")"})
    with pytest.raises(SpecError, match=r"^-s cannot be sent to engines with both kinds of quotes"):
        plan.arguments()
    line, _ = CellPlan("cudatime", "1", {"-s": "x='a\"b'"}).arguments()  # as it can be typed
    assert grammar().read(line, cell=True).options.setup == "x='a\"b'"


@pytest.mark.parametrize(
    ("options", "equally_often"),
    [
        ({}, True),
        ({"--barrier": True, "--nvtx": "x"}, True),
        ({"-n": 5, "-r": 3, "-w": 0}, True),
        ({"-n": 5, "-r": 3}, False),
        ({"-s": "x = 1"}, False),
        ({"--repeat": True}, False),
        ({"--cold": True}, False),
        ({"--kernels": True}, False),
        ({"-n": 5, "-r": 3, "-w": 1, "--queued": True}, False),
        ({"--precision": 0.1}, False),
        ({"--max-time": 1.0}, False),
    ],
)
def test_whether_the_code_runs_equally_often(options: dict[str, Any], equally_often: bool) -> None:
    assert CellPlan("cudatime", "1", options).runs_equally_often is equally_often


@pytest.mark.parametrize(
    ("code", "awaits"),
    [
        ("x = 1", False),
        ("await f()", True),
        ("async with a: pass", True),
        ("%time await f()", False),
        ("!ls\nawait f()", True),
        ("'await f()'", False),
        ("async def f(): await g()", False),
        ("await f(", False),
    ],
)
def test_whether_the_code_awaits(code: str, awaits: bool) -> None:
    assert CellPlan("cudatime", code).awaits is awaits
