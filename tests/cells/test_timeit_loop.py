"""`gpumagic.cells.timeit_loop`: a statement compiled into a function with a loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpumagic.cells.timeit_loop import compile_statement
from tests.support.shells import Ran


def test_a_line_magic_in_a_function_sees_its_variables(run_cell: Callable[..., Ran]) -> None:
    call = "get_ipython().run_line_magic('cudatime', '-n 3 -r 1 -o -q made = local')"
    timing = run_cell(f"def f():\n    local = 3\n    return {call}\nf()").value
    assert timing.loops == 3
    assert run_cell("{'local', 'made'} & {*globals()}").value == set()


@pytest.mark.parametrize("source", ["return 1", "yield 1", "await x", "1 +", "break"])
def test_what_is_no_statement_of_a_module_is_refused(source: str) -> None:
    for statement, setup in ((source, ""), ("pass", source)):
        with pytest.raises(SyntaxError):
            compile_statement(statement, {}, setup)
