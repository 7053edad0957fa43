"""``%cudatime``'s options, and what it shows and returns."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.results.timing import CudaTiming
from tests.support.own_files import names_our_files


def test_output_returns_the_timing_and_displays_the_value(run_cell: Any) -> None:
    ran = run_cell("%%cudatime -o\n6 * 7")
    assert isinstance(ran.value, CudaTiming)
    assert "42" in ran.text.splitlines()
    assert "wall" in ran.text


def test_variable_and_quiet(run_cell: Any) -> None:
    ran = run_cell("%cudatime -q -v t 6 * 7")
    assert ran.value == 42
    assert ran.text == ran.stdout.replace("Out[1]: 42\n", "") == ""
    assert isinstance(run_cell("t").value, CudaTiming)


@pytest.mark.parametrize("magic", ["cudatime", "gpumem"])
def test_a_semicolon_and_the_result(magic: str, ip: Any, run_cell: Any) -> None:
    """-o returns it to an assignment; a line of its own displays nothing."""
    assert run_cell(f"r = %{magic} -o -q 6 * 7;\nr").value is not None
    for bare in (
        f"%{magic} -o -q 6 * 7;",
        f"%{magic} -o -q 6 * 7; ",
        f"%%{magic} -o -q\n6 * 7;\n",
        f"if True:\n    %{magic} -o -q 6 * 7;",
    ):
        ran = run_cell(bare)
        assert ran.value is None, bare
        assert "Out[" not in ran.stdout
    assert run_cell(f"%{magic} -o -q 6 * 7").value is not None
    assert run_cell(f"%{magic} -q ';'").value == ";"
    assert run_cell(f"%%{magic} -q\n6 * 7  # a note;\n").value == 42
    assert run_cell(f"%%{magic} -o -q\n6 * 7;  # quiet\n").value is None


def test_options_end_where_the_statement_begins(ip: Any, run_cell: Any) -> None:
    ip.user_ns["f"] = lambda *arguments: ip.user_ns.update(got=arguments)
    ip.user_ns["x"] = 5
    timing = run_cell("%cudatime -n 3 -r 2 -o -q f(-x, '-q -n 9')").value
    assert (timing.loops, timing.repeat) == (3, 2)
    assert ip.user_ns["got"] == (-5, "-q -n 9")
    assert run_cell("%cudatime -q -- -x").value == -5
    assert run_cell("%cudatime -n4 -r2 -qo x").value.loops == 4


def test_where_the_caller_cannot_await(ip: Any, run_cell: Any) -> None:
    """One line, and no coroutine that never runs."""
    ip.user_ns["runs"] = runs = []
    run_cell("async def step(): runs.append(1)")
    for line in ("%cudatime", "%gpumem"):
        error = run_cell(f"{line} await step()", raising=False).error
        assert str(error) == f"{line} cannot await; write the code below %{line}"
    for line in ("%cudatime -n 1 ", "%%cudatime --repeat\n"):
        error = run_cell(f"{line}await step()", raising=False).error
        assert str(error).startswith("repeated runs cannot await; time one run, or asyncio.run(")
    call = "get_ipython().run_cell_magic('cudatime', '', 'await step()')"
    error = run_cell(f"def f(): return {call}\nf()", raising=False).error
    assert str(error) == "%%cudatime cannot await here; give it a cell of its own"
    assert runs == []


@pytest.mark.parametrize(
    "cell",
    [
        "%cudatime x = (",
        "ran = True\n%cudatime -q x = (",
        "ran = True\nif True:\n    %gpumem x = (",
    ],
)
def test_a_syntax_error_of_a_line_magic_is_shown_as_one_of_the_cell(
    run_cell: Any, ip: Any, cell: str
) -> None:
    ran = run_cell(cell, raising=False)
    assert isinstance(ran.error, SyntaxError)
    shown = ran.stdout + ran.stderr
    assert type(ran.error).__name__ in shown  # 3.13 has one of incomplete input
    assert not names_our_files(shown)
    assert "Traceback" not in shown
    assert "ran" not in ip.user_ns
