"""The functions that ``-f`` names, where the cell itself sets the name."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.cells.compile import compile_cell
from gpumagic.errors import SpecError
from gpumagic.magics.named_functions import sources


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("import torch.nn.functional as F\nF.relu", "F.relu"),
        ("again = own", "again"),
        ("async def own(): ...\nagain = own\nawait again()", "again"),
        ("for step in steps:\n    step()", "step"),
    ],
)
def test_a_name_that_the_cell_itself_sets_is_said(ip: Any, cell: str, name: str) -> None:
    with pytest.raises(SpecError, match=r"^-f .* is not there before this cell runs; define it"):
        sources(compile_cell(ip, cell), [name])


def test_what_is_known_is_found(ip: Any) -> None:
    def before() -> None: ...

    ip.user_ns["before"] = before
    cell = compile_cell(ip, "def own():\n    pass\nbefore = own")
    assert [each.name for each in sources(cell, ["own", "before"])] == ["cell", "own", "before"]
    with pytest.raises(SpecError, match="there is no 'nothing' here"):
        sources(cell, ["nothing"])


@pytest.mark.parametrize("magic", ["cudatime", "gpumem"])
def test_both_magics_say_it(ip: Any, run_cell: Any, magic: str) -> None:
    ran = run_cell(f"%%{magic} --lines -f late\nlate = print", raising=False)
    assert "'late' is not there before this cell runs" in str(ran.error)
