"""``%%cudatime --lines``: the lines of a cell as it is typed, and special cases."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.line_timings import LineTimings
from gpumagic.timing.lines.line_clock import LineClock

MONITORED = hasattr(sys, "monitoring")


@pytest.fixture
def lines(ip: Any, run_cell: Any, gpu_work: Any) -> Callable[..., LineTimings]:
    """``lines(cell, options="", raising=True)``: those of its timing, which is named ``timing``."""
    ip.user_ns.update(w=gpu_work, torch=gpu_work.torch, time=time)

    def measure(cell: str, options: str = "", **how: Any) -> LineTimings:
        run_cell(f"%%cudatime --lines -q -v timing {options}\n{cell}", **how)
        timing = ip.user_ns["timing"]
        assert isinstance(timing, CudaTiming)
        assert timing.lines is not None, timing.notes
        return timing.lines

    return measure


def test_lines_are_counted_as_in_tracebacks(lines: Any, ip: Any) -> None:
    found = lines("w.sleep(.01)\n\nw.sleep(.03)\nx = 5")
    assert [(line.line, line.source) for line in found] == [
        (2, "w.sleep(.01)"),
        (4, "w.sleep(.03)"),
        (5, "x = 5"),
    ]
    assert found[1].gpu == pytest.approx(0.03, rel=0.02)
    assert ip.user_ns["x"] == 5
    total = sum(line.gpu for line in found) + found.between.gpu
    assert total == pytest.approx(ip.user_ns["timing"].gpu.median, rel=0.02)


def test_what_is_shown(ip: Any, run_cell: Any, gpu_work: Any) -> None:
    ip.user_ns.update(w=gpu_work)
    shown = run_cell("%%cudatime --lines\nw.sleep(.03)\nx = 1").text.splitlines()
    assert shown[0].startswith("GPU-bound: ")
    assert shown[0].endswith("of line 2")
    assert shown[1].split() == ["Line", "Hits", "GPU", "Host", "Source"]  # as wide as it is here
    assert any(line.startswith("30.0 ms on cuda:0") for line in shown)
    shown = run_cell("%cudatime --lines w.sleep(.03)").text
    assert "  1     1  " in shown


def test_functions(lines: Any, run_cell: Any) -> None:
    run_cell("def before():\n    w.sleep(.01)\nclass A:\n    def step(self):\n        before()")
    found = lines("def here():\n    before()\nhere()\nA().step()", "-f here -f A.step -f before")
    assert [source.name for source in found.functions] == ["here", "A.step", "before"]
    here, step, before = (source.lines for source in found.functions)
    assert [(line.line, line.hits) for line in here] == [(3, 1)]
    assert step[0].gpu == pytest.approx(0.01, rel=0.02)
    assert (before[0].hits, before[0].gpu) == (2, pytest.approx(0.02, rel=0.02))


def test_a_cell_that_awaits(lines: Any) -> None:
    """What other tasks do meanwhile belongs to the line that waits."""
    found = lines(
        "import asyncio\nasync def other():\n    w.sleep(.03)\n"
        "task = asyncio.ensure_future(other())\nw.sleep(.01)\nawait asyncio.sleep(0)\nw.sleep(.02)"
    )
    by_number = {line.line: line for line in found}
    assert by_number[6].gpu == pytest.approx(0.01, rel=0.02)
    assert by_number[8].gpu == pytest.approx(0.02, rel=0.02)
    assert by_number[7].hits == 1
    assert by_number[7].gpu == pytest.approx(0.03, rel=0.02, abs=1e-4)
    assert found.between.gpu == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeoutError", "RuntimeError"])
def test_what_a_signals_handler_raises_is_the_cells(error: str, lines: Any, ip: Any) -> None:
    """Ctrl-C or a time limit, also where it comes while our code runs: the cell may catch it."""
    original, switches = LineClock.switch, 0

    def interrupting(ours: Any, *arguments: Any) -> None:
        nonlocal switches
        switches += bool(ours._devices)  # not while the cost of tracing is measured
        if switches == 60:
            signal.raise_signal(signal.SIGUSR1)
        original(ours, *arguments)

    ip.user_ns["n"] = 0
    ip.ex(f"def limit(number, frame): raise {error}('late')")
    before = signal.signal(signal.SIGUSR1, ip.user_ns["limit"])
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LineClock, "switch", interrupting)
            ran = lines("while True:\n    n += 1\n    x = n", raising=False)
            assert ip.user_ns["timing"].partial
            assert len(ran) >= 2
            switches = 0
            lines(
                f"try:\n    while True:\n        n += 1\n        x = n\n"
                f"except {error} as error:\n    caught = str(error)\ny = 2"
            )
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ip.user_ns["caught"] == "late"
    # What a trace function raises ends the tracing.
    notes = [note for note in ip.user_ns["timing"].lines.notes if "missing" in note]
    assert bool(notes) is not MONITORED


def test_a_failure_of_ours_leaves_the_cell_alone(
    lines: Any, ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumagic.timing.lines.line_clock._LOOKS", "not a number")
    found = lines("x = 1\nw.sleep(.01)\nfor i in range(3):\n    x += 1")
    assert ip.user_ns["x"] == 4
    assert any("lines are missing after an error (TypeError: " in n for n in found.notes)


def test_without_a_gpu(kernel: Any) -> None:
    """Host times all the same, and no verdict on what is not known."""
    from tests.virtual_gpu import Scenario

    one = kernel(Scenario(driver=False))
    one.run("%%cudatime --lines -q -v before\nx = 1")  # torch is not imported
    assert one.value("[line.gpu for line in before.lines]") == [None]
    one.run("import torch, time")
    one.run("%%cudatime --lines -q -v timing\ntime.sleep(.01)\ntorch.ones(3).sum().item()")
    assert one.value("[(line.gpu, line.syncs) for line in timing.lines]") == [(None, 0)] * 2
    assert one.value("timing.lines[0].host") >= 0.99 * 0.01
    assert one.value("(timing.lines.verdict, timing.gpu_note is None)") == (None, False)
    assert "GPU " not in one.value("str(timing.lines)")


def test_a_last_expression_on_the_line_of_another_statement(ip: Any, run_cell: Any) -> None:
    """It is compiled by itself, and belongs to the same run of the line."""
    cell = "y = 2\nif y > 1: y = 3\nx = 0; x = x + 1; x"
    assert run_cell(f"%%cudatime --lines -v t\n{cell}").value == 1
    assert [(line.line, line.hits) for line in ip.user_ns["t"].lines] == [(2, 1), (3, 1), (4, 1)]
    run_cell("%%cudatime --lines -v t\nfor x in range(3): x\nx")
    assert [(line.line, line.hits) for line in ip.user_ns["t"].lines] == [(2, 1), (3, 1)]
