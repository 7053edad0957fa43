"""``%cudatime``'s options, and what it shows and returns."""

from __future__ import annotations

import gc
import re
from typing import Any

import pytest

from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND


@pytest.mark.parametrize("magic", ["cudatime", "gpumem"])
def test_a_semicolon_and_the_result(magic: str, ip: Any, run_cell: Any) -> None:
    """-o returns it to an assignment; a line of its own displays nothing."""
    assert run_cell(f"r = %{magic} -o -q 6 * 7;\nr").value is not None
    for bare in (
        f"%{magic} -o -q 6 * 7;",
        f"%{magic} -o -q 6 * 7; ",
        f"%%{magic} -o -q\n6 * 7;\n",
        f"%%{magic} -o -q\n6 * 7;\n\n# the end\n",
        f"if True:\n    %{magic} -o -q 6 * 7;",
    ):
        ran = run_cell(bare)
        assert ran.value is None, bare
        assert "Out[" not in ran.stdout
    assert run_cell(f"%{magic} -o -q 6 * 7").value is not None
    assert run_cell(f"%{magic} -q ';'").value == ";"
    for code in ("6 * 7  # a note;", "6 * 7\n# a note;", "1; 6 * 7"):
        assert run_cell(f"%%{magic} -q\n{code}\n").value == 42
    assert run_cell(f"%%{magic} -o -q\n6 * 7;  # quiet\n").value is None


def test_where_the_caller_cannot_await(ip: Any, run_cell: Any) -> None:
    """One line, and no coroutine that never runs."""
    ip.user_ns["runs"] = runs = []
    run_cell("async def step(): runs.append(1)")
    for line in ("%cudatime", "%gpumem"):
        error = run_cell(f"{line} await step()", raising=False).error
        assert "cannot await: write it in a cell, below the magic" in str(error)
    for line in (
        "%cudatime -n 1 await step()",
        "%%cudatime --repeat\nawait step()",
        "%cudatime -n 2 -s 'await step()' 1",
    ):
        error = run_cell(line, raising=False).error
        assert str(error).startswith("repeated runs cannot await; time one run, or asyncio.run(")
    for option in ("cudatime --kernels", "gpumem --fit n=1:2"):
        error = run_cell(f"%%{option}\nawait step()", raising=False).error
        says = f"{option.split()[1]} runs the code again, which cannot await; leave it out"
        assert str(error) == says
    assert runs == []


# --- repeated runs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "stopped early: the code has not run to its end"),
        ("-n 1 -r 3 -w 0", "stopped early, after 1 of 3 repeats"),
        ("-n 1 --max-time 9s -w 0", "stopped early, after 1 repeat"),
    ],
)
def test_what_did_not_end_says_so(options: str, says: str, ip: Any, run_cell: Any) -> None:
    ip.user_ns["once"] = iter([1] if options else ())
    ran = run_cell(f"%%cudatime {options}\nnext(once)", raising=False)
    assert isinstance(ran.error, StopIteration)
    assert says in ran.text


def test_setup_is_run_before_each_repeat_and_not_timed(ip: Any, run_cell: Any, clock: None) -> None:
    ip.user_ns["made"] = made = []
    source = (
        "%%cudatime -n 2 -r 3 -w 0 -o -q "
        "-s 'import time; time.sleep(0.02); made.append(1); k = 7'\n"
        "made.append(k)"
    )
    timing = run_cell(source).value
    assert timing.wall.best < 0.01, "half of what the setup would add to each"
    assert made == [1, 7, 7] * 3
    assert "k" not in ip.user_ns


def test_setups_errors_point_at_the_line(run_cell: Any) -> None:
    ran = run_cell("%%cudatime -n 1 -s 'k = 1 / 0'\nk + 1", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert "----> 1 %%cudatime -n 1 -s 'k = 1 / 0'" in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("cell", "line", "marked"),
    [
        ("%%cudatime\nx = 1\n\ny = =", 4, "="),
        ("%%cudatime --lines\nx = 1\n\ny = =", 4, "="),
        ("%%cudatime -n 1 -r 2\nx = 1\ny = =", 3, "="),
        ("%%cudatime -n 1\nreturn", 2, "return"),
    ],
)
def test_syntax_errors_are_shown_as_those_of_a_cell(
    cell: str, line: int, marked: str, ip: Any, run_cell: Any
) -> None:
    """The place, and a mark below the error; no frames of the magic above, and nothing runs."""
    number = ip.execution_count
    ran = run_cell(cell, raising=False)
    assert isinstance(ran.error, SyntaxError)
    place, source, mark, message = filter(str.strip, (ran.stdout + ran.stderr).splitlines())
    expected = rf'(Cell In\[{number}\]|File "<ipython-input-{number}-\w+>"), line {line}'
    assert re.fullmatch(expected, place.strip())
    assert source[mark.index("^") :].startswith(marked)
    assert message.startswith("SyntaxError: ")
    assert "ran" not in ip.user_ns


@pytest.mark.parametrize("magic", ["cudatime", "gpumem"])
def test_a_bad_statement_fails_where_it_stands(magic: str, ip: Any, run_cell: Any) -> None:
    """As behind %time: what stands above it has run, and it fails only where it is reached."""
    ran = run_cell(f"ran = True\n%{magic} y = =", raising=False)
    assert isinstance(ran.error, SyntaxError)
    assert ip.user_ns["ran"] is True
    assert ran.error.lineno == 2
    assert "line 2" in ran.stdout + ran.stderr
    assert run_cell(f"if False:\n    %{magic} y = =\n'reached'").value == "reached"
    assert run_cell(f"def f():\n    %{magic} y = =\n\n'defined'").value == "defined"


def test_options_reach_the_benchmark(gpu_work: Any, ip: Any, run_cell: Any) -> None:
    ip.user_ns["torch"] = gpu_work.torch
    code = f"torch.cuda._sleep({SLEEP_CYCLES_PER_SECOND // 1000})"
    timing = run_cell(f"%cudatime -o -q --repeat --cold {code}").value
    assert timing.stopped_by == "precision"
    assert any("L2 cache flushed" in note for note in timing.notes)
    timing = run_cell(f"%cudatime -o -q --max-time 50ms {code}").value
    assert timing.stopped_by == "max-time"


def test_the_collector_is_off_while_repeating(ip: Any, run_cell: Any) -> None:
    ip.user_ns["seen"] = seen = []
    run_cell("%cudatime -q -n 1 -r 3 -w 0 seen.append(__import__('gc').isenabled())")
    assert seen == [False] * 3
    assert gc.isenabled()
