"""``%%gpumem --lines``: exact to the byte, on the statement that allocates."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from gpumagic.results.memory.line_memory import LineReport
from tests.support.allocator import MIB, empty


@pytest.fixture
def lines(torch: ModuleType, ip: Any, run_cell: Any) -> Any:
    """``lines(cell, options="", raising=True)``: its `LineReport`; ``e(MiB, device)`` allocates."""

    def e(size: float, ordinal: int = 0) -> Any:
        return empty(torch, int(size * MIB), ordinal)

    e(1)
    ip.user_ns.update(e=e, torch=torch)

    def measure(cell: str, options: str = "", **how: Any) -> LineReport:
        run_cell(f"%%gpumem --lines -q -v report {options}\n{cell}", **how)
        report = ip.user_ns["report"]
        assert isinstance(report, LineReport)
        return report

    return measure


def in_mib(report: LineReport, source: int = 0, ordinal: int = 0) -> dict[int, tuple[float, ...]]:
    """By line: change and peak, in MiB."""
    found = report.sources[source].devices.get(ordinal, {})
    return {number: (m.change / MIB, m.peak / MIB) for number, m in found.items()}


# --- on its line ---------------------------------------------------------------------------------

#: A cell, and the change and the peak of each line of it.
CELLS: dict[str, tuple[str, dict[int, tuple[float, float]]]] = {
    "each line": (
        "a = e(10)\nb = e(4); del b\nc = e(2)\ndel a",
        {2: (10, 10), 3: (0, 4), 4: (2, 2), 5: (-10, 0)},
    ),
    "a loop is summed, and its peak is of one pass": (
        "kept = []\nfor i in range(5):\n    kept.append(e(2))\n    t = e(3)\n    del t",
        {4: (10, 2), 5: (15, 3), 6: (-15, 0)},
    ),
    "a statement of several lines": (
        "d = dict(\n    a=e(2),\n    b=[\n        e(4),\n        e(8)],\n)\nx = e(1)",
        {2: (14, 14), 8: (1, 1)},
    ),
    "comprehensions": (
        "x = [e(2) for i in range(3)]\ny = [\n    e(2)\n    for i in range(3)\n]\n"
        "n = sum(e(4).numel() for i in range(2))",
        {2: (6, 6), 3: (6, 6), 7: (0, 4)},
    ),
    "what a called function does": (
        "def f():\n    t = e(20)\n    return e(5)\nx = f()\nx = f()",
        {5: (5, 25), 6: (0, 25)},
    ),
    "what other tasks do while it awaits": (
        "import asyncio\nkept = []\nasync def other():\n    kept.append(e(6))\na = e(1)\n"
        "task = asyncio.ensure_future(other())\nawait asyncio.sleep(0.01)\nb = e(2)",
        {6: (1, 1), 8: (6, 6), 9: (2, 2)},
    ),
    "a line that awaits, with what it holds": (
        "import asyncio\nasync def f():\n    a = e(40)\n    await asyncio.sleep(0)\n    b = e(8)\n"
        "    return b\nr = await f()\nz = e(2)",
        {8: (8, 48), 9: (2, 2)},
    ),
    "a reset by the user": (
        "x = [e(8), torch.cuda.reset_peak_memory_stats(),\n"
        "     torch.cuda.reset_accumulated_memory_stats(), e(1)]",
        {2: (9, 9)},
    ),
    "code from a string": ("exec('y = e(3)')", {2: (3, 3)}),
}


@pytest.mark.parametrize("name", CELLS)
def test_each_line(name: str, lines: Any) -> None:
    cell, expected = CELLS[name]
    report = lines(cell)
    assert in_mib(report) == expected
    changes = sum(memory.change for memory in report.sources[0].devices[0].values())
    assert changes == report.cell.devices[0].allocated
    assert report.notes == ()


def test_a_cell_that_raises(lines: Any) -> None:
    report = lines("a = e(2)\nb = e(3); raise KeyError('mine')\nc = e(4)", raising=False)
    assert in_mib(report) == {2: (2, 2), 3: (3, 3)}
    assert report.cell.partial


# --- functions -----------------------------------------------------------------------------------


#: What is defined before the cell, the cell, its options, and figures of its and their lines.
FUNCTIONS: dict[str, tuple[str, str, str, list[dict[int, tuple[float, float]]]]] = {
    "one that calls another": (
        "def inner(n):\n    return e(n)\ndef outer():\n    a = inner(2)\n    return e(1)",
        "x = outer()\ny = inner(4)",
        "-f inner -f outer",
        [{2: (1, 3), 3: (4, 4)}, {2: (6, 4)}, {4: (2, 2), 5: (1, 1)}],
    ),
    "a method of the cell": (
        "",
        "class A:\n    def f(self):\n        return e(3)\nx = A().f()",
        "-f A.f",
        [{5: (3, 3)}, {4: (3, 3)}],
    ),
    "a recursion counts once": (
        "def f(n):\n    if n == 0: return []\n    x = e(1)\n    return [x, *f(n - 1)]",
        "x = f(4)",
        "-f f",
        [{2: (4, 4)}, {3: (4, 1)}],
    ),
    "a generator": (
        "def g():\n    for i in range(3):\n        yield e(2)\n    t = e(9)",
        "kept = []\nfor x in g():\n    kept.append(e(1))",
        "-f g",
        [{3: (2, 9), 4: (3, 1)}, {3: (6, 2), 4: (9, 9)}],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, lines: Any, run_cell: Any) -> None:
    defined, cell, options, expected = FUNCTIONS[name]
    run_cell(defined)
    report = lines(cell, options)
    for source, figures in enumerate(expected):
        assert in_mib(report, source) == figures


# --- on the screen -------------------------------------------------------------------------------


def test_on_the_screen(lines: Any, run_cell: Any) -> None:
    filler = "\n".join(f"n{i} = {i}" for i in range(12))
    ran = run_cell(f"%%gpumem --lines\nif True:\n    a = e(2)\n{filler}\nb = e(1); c = 0")
    assert ran.text.splitlines()[:2] + ran.text.splitlines()[3:6] == [
        "cell on cuda:0",
        "Line  Hits     Change                Peak  Source",
        "   2     1                                 if True:",
        "   3     1  +2.00 MiB  ████████ +2.00 MiB      a = e(2)",
        "   4     1                                 n0 = 0",
    ]
    assert "⋯" in ran.text
    assert "n6 = 6" not in ran.text


def test_what_did_not_run(lines: Any, run_cell: Any) -> None:
    assert "cell: nothing to run" in str(lines("# nothing"))
    run_cell("class M(torch.nn.Module):\n    def forward(self, x):\n        return e(2)")
    said = "M.forward: was not seen to run in this cell's thread"
    assert said in str(lines("M()", "-f M.forward"))
