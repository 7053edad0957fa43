"""A cell under a magic shows and returns what it does without: by IPython's own settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pytest

import gpumagic
from tests.support.shells import Ran

Run = Callable[..., Ran]
MAGICS = ("%%cudatime -q", "%%gpumem -q", "%%gpu on -q")
magics = pytest.mark.parametrize("magic", MAGICS)


@magics
def test_with_the_result_the_value_is_displayed(magic: str, run_cell: Run, ip: Any) -> None:
    """And ``_`` is the result that was asked for, in every magic."""
    ran = run_cell(f"{magic} -o\n[41, 1]")
    assert ran.text == "[41, 1]"
    assert type(ran.value).__name__ in ("CudaTiming", "MemoryDelta", "Selection")
    assert ip.user_ns["_"] is ran.value
    assert run_cell(f"{magic} -o\nx = 1").text == ""
    assert run_cell(f"{magic} -o\n[41, 1];").text == ""
    assert run_cell(f"{magic}\n[41, 1]").value == [41, 1]


@pytest.mark.parametrize("line", ["%gpumem -q -v d {};", "%%gpumem -q -v d\n{};  # no value\n"])
def test_a_value_that_nobody_gets_is_released_as_a_part_of_the_cell(
    line: str, torch: Any, run_cell: Run, ip: Any
) -> None:
    """Allocated until then, and not after."""
    run_cell("import torch; torch.ones(1, device='cuda')")
    run_cell(line.format("torch.ones(2**20, device='cuda')"))
    change = ip.user_ns["d"].devices[0]
    assert (change.allocated, change.peak) == (0, 4 * 2**20)


CODE = "1\nif True:\n    2\nx = 3\n4"


@magics
@pytest.mark.parametrize(
    "code",
    [
        *(CODE, f"{CODE};", "y = 5", "y: int = 6", "y += 7", "y, z = 8, 9"),
        *("5\nfor i in range(3):\n    i", "for i in range(3):\n    i; y = i;"),
        *("5\nif y: 6", "with open('/dev/null'): 5", "def f():\n    5\n", "y = await later(5)"),
        "async for i in several():\n    i",
    ],
)
@pytest.mark.parametrize("shown", ["all", "last", "last_expr", "none"])
def test_what_is_shown(magic: str, code: str, shown: str, run_cell: Run, ip: Any) -> None:
    async def later(value: int) -> int:
        return value

    async def several() -> AsyncIterator[int]:
        yield 1
        yield 2

    def outs(source: str) -> list[str]:
        ip.user_ns.update(y=1, later=later, several=several)
        return [line.partition("]: ")[2] for line in run_cell(source).stdout.splitlines()]

    before = ip.ast_node_interactivity
    ip.ast_node_interactivity = shown
    try:
        assert outs(f"{magic}\n{code}") == outs(code)
    finally:
        ip.ast_node_interactivity = before


def test_an_alias(run_cell: Run, ip: Any) -> None:
    run_cell("%alias_magic t cudatime -p '-q'\n%alias_magic m gpumem\nx = [1]")
    assert run_cell("%t x + [2]").value == [1, 2]
    run_cell("%%m -q -v of_{x[0]}\nx.append(3)")
    assert ip.user_ns["x"] == [1, 3]
    assert "of_1" in ip.user_ns


def test_a_magic_of_the_users_own_of_the_same_name(run_cell: Run, ip: Any) -> None:
    ip.register_magic_function(lambda line, cell: [line, cell], "cell", "gpu")
    assert run_cell("%%gpu mine\nawait what is no Python;").value == [
        "mine",
        "await what is no Python;\n",
    ]


@pytest.mark.parametrize(
    "cell",
    [
        *(f"{magic}\n1 / 0" for magic in (*MAGICS, "%%cudatime -q --lines", "%%cudatime -qn 2")),
        *(f"{magic}\nimport asyncio\nawait asyncio.sleep(0)\n1 / 0" for magic in MAGICS),
        "def f(zero):\n    %cudatime -qn 2 1 / zero\nf(0)",  # a copy of the namespace
    ],
)
def test_a_traceback_has_no_frames_of_ours(cell: str, run_cell: Run) -> None:
    """But that of the function which raises the exception again, which IPython hides."""
    error = run_cell(cell, raising=False).error
    assert isinstance(error, ZeroDivisionError)
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    package = Path(gpumagic.__file__).parent
    ours = [each for each in frames if package in Path(each.f_code.co_filename).parents]
    shown = [each for each in ours if not each.f_locals.get("__tracebackhide__")]
    assert [each.f_code.co_name for each in shown] == []
    assert len(ours) == 1
    assert ours[0] is not frames[-1]
