"""`gpumagic.cells.compile`: cells compiled as IPython does, apart from being run."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from gpumagic.cells.compile import compile_cell
from tests.support.shells import Ran


def run(cell: Any) -> Any:
    return cell.run(nullcontext())


def test_indented_code(ip: Any) -> None:
    assert run(compile_cell(ip, "    1 + 1")) == 2
    cell = compile_cell(ip, "\tx = 3\n\tx + 1;")
    assert (run(cell), cell.silent, ip.user_ns["x"]) == (None, True, 3)


def test_lines_below_what_ipython_shortens(ip: Any) -> None:
    """Blank lines above a cell are removed, a continued ``!`` line is joined."""
    for source, line in (("\n\n1 / 0", 3), ("!echo \\\n  a > /dev/null\n1 / 0", 3)):
        with pytest.raises(ZeroDivisionError) as raised:
            run(compile_cell(ip, source))
        assert traceback.extract_tb(raised.value.__traceback__)[-1].lineno == line


@pytest.mark.parametrize(
    "call",
    [
        "get_ipython().run_cell_magic('cudatime', '-q', body)",
        "get_ipython().run_cell_magic('cudatime', '-q', cell=body)",
        "get_ipython().run_cell_magic('cudatime', line, body[:-1] + '')\nafter = 1",
    ],
)
def test_a_call_that_the_user_has_written(ip: Any, run_cell: Callable[..., Ran], call: str) -> None:
    ip.user_ns.update(body="found = 7\n", line="-q")
    ran = run_cell(call)
    assert (ran.error, ip.user_ns["found"], ran.stderr) == (None, 7, "")


def test_a_call_that_is_no_code(run_cell: Callable[..., Ran]) -> None:
    ran = run_cell("get_ipython().run_cell_magic('cudatime', '-q', body", raising=False)
    assert isinstance(ran.error, SyntaxError)
