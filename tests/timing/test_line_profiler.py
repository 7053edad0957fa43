"""Lines of known duration are reported with that duration, and add up to the cell."""

from __future__ import annotations

import ast
import gc
import re
import signal
import sys
import time
from math import fsum
from types import FrameType
from typing import Any, cast

import pytest

from gpumagic.cells.line_events import TraceEvents
from gpumagic.cells.line_sources import cell_source
from gpumagic.cells.line_tracer import Line
from gpumagic.cuda import torch_cuda
from gpumagic.results import CudaTiming
from gpumagic.results.line_timing import LineTiming, LineTimings
from gpumagic.results.timing import NO_SIGN
from gpumagic.timing import line_profiler
from gpumagic.timing.line_kernels import LineWork
from gpumagic.timing.line_profiler import (
    LineProfiler,
    TracingCost,
    tracing_cost,
    with_kernels,
    without_kernels,
)
from gpumagic.timing.line_timer import LineTimer
from gpumagic.timing.run import ENDED
from tests.support.line_cells import measured

#: What the marks at the boundaries of a line may add to its time.
MARKS = 20e-6


def lines_of(timing: CudaTiming) -> LineTimings:
    assert timing.lines is not None, timing.notes
    return timing.lines


def by_number(timing: CudaTiming) -> dict[int, LineTiming]:
    return {line.line: line for line in lines_of(timing)}


def in_total(timing: CudaTiming) -> float:
    assert timing.host is not None
    return timing.host.median


def check_sum(timing: CudaTiming, between: float = 0.02) -> None:
    """The lines and what lies between them add up to the cell, on the GPU and on the host.

    ``between``: the part of the GPU time that may lie there: for how long measuring held it up.
    """
    lines = lines_of(timing)
    assert timing.gpu is not None
    assert timing.host is not None
    assert lines.between is not None
    of_lines = fsum(line.gpu or 0.0 for line in lines)
    # Not `between`, which is what the lines leave: they must leave next to nothing.
    assert of_lines == pytest.approx(timing.gpu.median, rel=between, abs=MARKS)
    total = of_lines + (lines.between.gpu or 0.0)
    assert total == pytest.approx(timing.gpu.median, rel=0.001, abs=1e-6)
    host = fsum(line.host for line in (*lines, lines.between))
    assert host == pytest.approx(timing.host.median, rel=0.001, abs=1e-6)
    for ordinal, sample in timing.per_device.items():
        of_device = fsum(line.per_device.get(ordinal, 0.0) for line in lines)
        assert of_device == pytest.approx(sample.median, rel=between, abs=MARKS)


CASES: dict[str, tuple[str, dict[int, float]]] = {
    "one after the other": ("w.sleep(.05)\nw.sleep(.02)\nx = 1", {2: 0.05, 3: 0.02, 4: 0.0}),
    "a loop adds up": (
        "for i in range(10):\n    w.sleep(.01)\n    w.sleep(.002 * i)",
        {3: 0.1, 4: 0.09},
    ),
    "a side stream": ("w.on_side(.05)\nw.sleep(.01)\nx = 1", {2: 0.05, 3: 0.0, 4: 0.0}),
    "a side stream that outlasts the next line": (
        "w.sleep(.01)\nw.on_side(.05)\nx = 1",
        {2: 0.01, 3: 0.04, 4: 0.0},
    ),
    "a high priority": ("x = 1\nw.on_side(.05, priority=-1)", {2: 0.0, 3: 0.05}),
    "a block of a stream": (
        "with w.torch.cuda.stream(w.torch.cuda.Stream()):\n    w.sleep(.03)\n    w.sleep(.01)",
        {3: 0.03, 4: 0.01},
    ),
    "another device": ("w.sleep(.03, 1)\nw.sleep(.01, 1)", {2: 0.03, 3: 0.01}),
    "two devices side by side": ("w.sleep(.02)\nw.sleep(.05, 1)", {2: 0.02, 3: 0.03}),
    "two devices, on side streams": (
        "w.on_side(.05)\nw.on_side(.02, 1)\nx = 1",
        {2: 0.05, 3: 0.0, 4: 0.0},
    ),
    "the GPU idles with the host": (
        "w.sleep(.01)\nw.torch.cuda.synchronize()\ntime.sleep(.05)\nw.sleep(.01)",
        {2: 0.01, 3: 0.0, 4: 0.05, 5: 0.01},
    ),
    "a comprehension": ("x = 1\nx = [w.sleep(.01) for i in range(3)]", {2: 0.0, 3: 0.03}),
    "a line of many calls": ("w.sleep(.01); w.on_side(.005); w.sleep(.01)", {2: 0.02}),
    "an exception": ("w.sleep(.02)\n1 / 0", {2: 0.02, 3: 0.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_known_duration(name: str, gpu_work: Any) -> None:
    cell, true = CASES[name]
    timing = measured(cell, w=gpu_work, time=time)
    check_sum(timing)
    found = by_number(timing)
    for number, duration in true.items():
        line = found[number]
        hits = line.hits
        assert line.gpu == pytest.approx(duration, rel=0.02, abs=MARKS * hits + 100e-6), number


def test_another_threads_work_counts_to_the_line_that_runs(gpu_work: Any) -> None:
    timing = measured("w.from_thread(.05)\nx = 1", w=gpu_work)
    check_sum(timing)
    found = by_number(timing)
    assert found[2].gpu is not None
    # The thread launches it some time after the line has begun, at most when the line ends.
    assert 0.98 * 0.05 <= found[2].gpu <= 1.02 * 0.05 + found[2].host
    assert found[3].gpu == pytest.approx(0.0, abs=100e-6)


class Interrupt:
    """A profile function that raises once, at the call or the end of a call with this number."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType | None, event: str, arg: Any) -> None:
        self.left -= 1
        if self.left:
            return
        while frame is not None:  # what is raised in a finalizer goes nowhere
            if frame.f_code.co_name == "__del__":
                self.left = 1
                return
            frame = frame.f_back
        sys.setprofile(None)
        raise KeyboardInterrupt


def test_an_interrupt_at_any_step_leaves_nothing_behind(
    gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No trace function, tool of ``sys.monitoring``, signal handler or wrapper of torch's."""
    monkeypatch.setattr(line_profiler, "tracing_cost", TracingCost)
    text = "x = 1\ny = 2"
    tree = ast.parse(text)
    code = compile(tree, "<cell>", "exec")
    torch, monitoring = gpu_work.torch, getattr(sys, "monitoring", None)

    def state() -> tuple[Any, ...]:
        tools = [None if monitoring is None else monitoring.get_tool(i) for i in (3, 4)]
        wrapped = (torch.Tensor.__dict__.get("item"), torch._C._cuda_synchronize)
        return (sys.gettrace(), signal.getsignal(signal.SIGINT), *tools, *wrapped)

    def is_interrupted(number: int) -> bool:
        profiler = LineProfiler([cell_source([code], text, 1, tree)], {})
        interrupt = Interrupt(number)
        profiler.prepare()
        try:
            sys.setprofile(interrupt)
            profiler.start()
            exec(code, {})
            profiler.stop()
        except KeyboardInterrupt:
            return True
        finally:
            interrupt.left = 0
            sys.setprofile(None)
            profiler.close()
            profiler.release()
        assert profiler._tracer.notes == []
        return False

    previous = sys.gettrace()
    sys.settrace(None)  # of a coverage tool
    # What frees the earlier profilers is code that has no caller to raise the interrupt to.
    gc.collect()
    gc.disable()
    try:
        before = state()
        for number in range(1, 2000):
            has_more = is_interrupted(number)
            assert state() == before, number
            if not has_more:
                break
        assert 50 < number < 1999
    finally:
        gc.enable()
        sys.settrace(previous)


def test_at_most(gpu_work: Any) -> None:
    """Only where the GPU may have been idle, for a part of the time that matters."""
    # The last is long: a mark on each of the streams that were ever used delays its beginning.
    cell = "w.sleep(.01)\nw.torch.cuda.synchronize()\ntime.sleep(.05)\nw.sleep(.05)\nx = 1"
    found = by_number(measured(cell, w=gpu_work, time=time))
    assert [found[i].at_most for i in range(2, 7)] == [False, True, True, False, False]


def test_hits_and_host_time(gpu_work: Any) -> None:
    cell = "for i in range(3):\n    time.sleep(.02)\nif i > 5:\n    x = 1\nf = lambda: i; f(); f()"
    timing = measured(cell, w=gpu_work, time=time)
    found = by_number(timing)
    assert {i: line.hits for i, line in found.items()} == {2: 4, 3: 3, 4: 1, 6: 1}
    assert 0.06 <= found[3].host <= in_total(timing)
    assert found[3].source == "    time.sleep(.02)"


@pytest.mark.parametrize(
    ("short", "long"), [(5e-6, 50e-6), (20e-6, 20e-6), (1e-6, 200e-6)], ids=str
)
def test_many_passes_are_sampled(short: float, long: float, gpu_work: Any) -> None:
    cell = "for i in range(5000):\n    w.sleep(short)\n    w.sleep(long)"
    timing = measured(cell, w=gpu_work, short=short, long=long)
    check_sum(timing, between=0.1)
    found = by_number(timing)
    assert found[3].gpu == pytest.approx(5000 * short, rel=0.05, abs=0.05 * 5000 * long * 0.01)
    assert found[4].gpu == pytest.approx(5000 * long, rel=0.05)
    assert found[3].interval > 1
    assert any("sample" in note for note in lines_of(timing).notes)


def test_passes_that_grow_are_sampled_evenly(gpu_work: Any) -> None:
    """A line that takes longer and longer, beside one that does not."""
    cell = "for i in range(4000):\n    w.sleep(30e-6 + i * 3e-8)\n    w.sleep(80e-6)"
    timing = measured(cell, w=gpu_work)
    check_sum(timing)
    found = by_number(timing)
    assert found[3].gpu == pytest.approx(4000 * (30e-6 + 2000 * 3e-8), rel=0.05)
    assert found[4].gpu == pytest.approx(4000 * 80e-6, rel=0.05)


SHORT: dict[str, tuple[str, dict[int, tuple[int, float]]]] = {
    "in turn": (
        "for i in range(6000):\n    time.sleep(20e-6)\n    x = i",
        {2: (6001, 0.0), 3: (6000, 0.12), 4: (6000, 0.0)},
    ),
    "a long run now and then": (
        "for i in range(6000):\n    time.sleep(.01 if i % 1000 == 999 else 10e-6)\n    x = i",
        {2: (6001, 0.0), 3: (6000, 0.06 + 5994 * 10e-6), 4: (6000, 0.0)},
    ),
    "a line that runs now and then": (
        "for i in range(6000):\n    if i % 100 == 99:\n        time.sleep(50e-6)",
        {2: (6001, 0.0), 3: (6000, 0.0), 4: (60, 60 * 50e-6)},
    ),
    "comprehensions": (
        "for i in range(3000):\n    x = [j for j in range(3)]\n    time.sleep(10e-6)",
        {2: (3001, 0.0), 3: (3000, 0.0), 4: (3000, 0.03)},
    ),
    "an exception ends it": (
        "for i in range(6000):\n    time.sleep(20e-6)\n    1 / (i < 5000)",
        {2: (5001, 0.0), 3: (5001, 0.1), 4: (5001, 0.0)},
    ),
    "exceptions within": (
        "for i in range(3000):\n    try:\n        1 / 0\n    except ZeroDivisionError:\n"
        "        time.sleep(10e-6)",
        {2: (3001, 0.0), 3: (3000, 0.0), 4: (3000, 0.0), 5: (3000, 0.0), 6: (3000, 0.03)},
    ),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_lines_are_counted_exactly(name: str, gpu_work: Any) -> None:
    """Runs without a boundary: all are counted, with the host's time."""
    cell, true = SHORT[name]
    timing = measured(cell, w=gpu_work, time=time)
    found = by_number(timing)
    assert {number: line.hits for number, line in found.items()} == {
        number: hits for number, (hits, _) in true.items()
    }
    for number, (_, host) in true.items():
        assert found[number].host == pytest.approx(host, rel=0.1, abs=5e-4), number
    if timing.gpu is not None:
        # The GPU is idle, for as long as the lines run; while they are measured, for none of them.
        of_lines = fsum(line.gpu or 0.0 for line in lines_of(timing))
        host = fsum(line.host for line in lines_of(timing))
        assert of_lines == pytest.approx(host, rel=0.25, abs=1e-3)
        assert of_lines <= timing.gpu.median


def test_waits_in_short_lines_are_counted(gpu_work: Any) -> None:
    x = gpu_work.torch.zeros((), device="cuda")
    cell = "for i in range(4000):\n    y = i\n    if i % 500 == 499:\n        x.item()\n    z = i"
    found = by_number(measured(cell, w=gpu_work, x=x))
    assert {number: line.syncs for number, line in found.items()} == {2: 0, 3: 0, 4: 0, 5: 8, 6: 0}
    cell = "for i in range(4000):\n    if i % 500 == 499: x.item()\n    z = i"
    found = by_number(measured(cell, w=gpu_work, x=x))
    assert {number: line.syncs for number, line in found.items()} == {2: 0, 3: 8, 4: 0}


def test_short_lines_of_functions(gpu_work: Any) -> None:
    """With what calls them, their own calls of themselves, and pauses."""

    def loop(n: int) -> None:
        for _ in range(2000):
            time.sleep(10e-6)
        if n:
            loop(n - 1)

    def paused() -> Any:
        for i in range(2000):
            time.sleep(10e-6)
            if not i % 100:
                yield i

    def run() -> None:
        loop(2)
        for _ in paused():
            time.sleep(1e-3)

    timing = measured("run()", (run, loop, paused), run=run)
    own, of_loop, of_paused = lines_of(timing).functions
    assert [line.hits for line in of_loop.lines] == [6003, 6000, 3, 2]
    assert [line.hits for line in of_paused.lines] == [2001, 2000, 2000, 20]
    assert of_paused.lines[1].host == pytest.approx(0.02, rel=0.1)
    assert of_loop.lines[1].host == pytest.approx(0.06, rel=0.1)
    assert [line.hits for line in own.lines] == [1, 21, 20]
    assert own.lines[0].host == pytest.approx(0.06, rel=0.1)


def test_short_lines_have_few_boundaries(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    boundaries = []
    new = LineTimer._new_boundary
    monkeypatch.setattr(
        LineTimer, "_new_boundary", lambda *arguments: boundaries.append(1) or new(*arguments)
    )
    measured("for i in range(50000):\n    x = i", w=gpu_work)
    assert len(boundaries) < 0.15 * 100_000


def test_long_lines_are_measured_each_time(gpu_work: Any) -> None:
    """Ten times the lines that `make bench` measures: a mark costs more on a slow machine."""
    timing = measured("for i in range(60):\n    time.sleep(1e-2)", w=gpu_work, time=time)
    assert by_number(timing)[3].interval == 1
    assert not [note for note in lines_of(timing).notes if "measuring" in note]  # at most 2 %


def test_the_cost_is_said(gpu_work: Any) -> None:
    timing = measured("for i in range(1000):\n    x = i", w=gpu_work)
    assert any("measuring the lines took" in note for note in lines_of(timing).notes)


def test_the_cost_of_tracing_is_the_tracers(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an empty loop takes for each line is part of the cost, and no line's time."""
    assert min(tracing_cost()) >= 0
    monkeypatch.setattr(line_profiler, "tracing_cost", lambda: TracingCost(1.0, 1.0, 1.0, 1.0))
    timing = measured("for i in range(10):\n    x = i", w=gpu_work)
    assert {line.host for line in lines_of(timing)} == {0.0}
    (note,) = (each for each in lines_of(timing).notes if "measuring" in each)
    assert "took 100 % of the wall time; the host times of short lines are upper" in note


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="there tracing slows nothing else down")
def test_what_tracing_slows_down_is_said(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls from the cell's lines are not traced; those from functions are, and it is a bound."""
    monkeypatch.setattr(line_profiler, "tracing_cost", lambda: TracingCost(call=1e-3))

    def step() -> None:
        time.sleep(0.01)
        for _ in range(100):
            inner()

    def inner() -> None:
        return None

    def cost(timing: CudaTiming) -> str:
        (note,) = (each for each in lines_of(timing).notes if "measuring" in each)
        return note

    names = {"step": step, "inner": inner, "time": time}
    of_cell = cost(measured("time.sleep(.1)\nfor i in range(10):\n    inner()", **names))
    percent = float(of_cell.split()[4])
    assert 10 <= percent < 11, "10 calls of 1 ms in 0.1 s"
    note = cost(measured("step()", (step,), **names))
    assert note.startswith("measuring the lines took at least 100 % of the wall time: before")


def test_functions_have_lines_of_their_own(gpu_work: Any) -> None:
    """Their times are in the line that calls them, and again by themselves."""

    def step(seconds: float) -> None:
        gpu_work.sleep(seconds)
        time.sleep(0.01)

    timing = measured("step(.02)\nstep(.03)", (step,), step=step)
    check_sum(timing)
    found = by_number(timing)
    assert found[2].gpu == pytest.approx(0.02, rel=0.02)
    assert found[3].gpu == pytest.approx(0.03, rel=0.02)
    (function,) = lines_of(timing).functions
    assert function.name == "step"
    assert [(line.hits, line.source.strip()) for line in function.lines] == [
        (2, "gpu_work.sleep(seconds)"),
        (2, "time.sleep(0.01)"),
    ]
    assert function.lines[0].gpu == pytest.approx(0.05, rel=0.02)
    assert 0.02 <= function.lines[1].host <= in_total(timing)


def test_a_recursion_counts_once(gpu_work: Any) -> None:
    def down(n: int) -> None:
        gpu_work.sleep(0.01)
        if n:
            down(n - 1)

    timing = measured("down(3)", (down,), down=down)
    (function,) = lines_of(timing).functions
    first, test, call = function.lines
    assert (first.hits, test.hits, call.hits) == (4, 4, 3)
    assert first.gpu == pytest.approx(0.04, rel=0.02)
    assert call.gpu == pytest.approx(0.0, abs=4 * MARKS)


def test_a_recursion_in_a_single_line_counts_once(gpu_work: Any) -> None:
    def down(n: int) -> None: gpu_work.sleep(0.01), n and down(n - 1)  # type: ignore[func-returns-value] # fmt: skip

    timing = measured("down(3)", (down,), down=down)
    (function,) = lines_of(timing).functions
    (line,) = function.lines
    assert line.hits == 4
    assert line.gpu == pytest.approx(0.04, rel=0.02)


def test_lines_are_evidence_of_work_that_has_ended(gpu_work: Any) -> None:
    timing = measured("w.sleep(.02)\nw.torch.cuda.synchronize()", w=gpu_work)
    assert (timing.gpu_at_most, timing.gpu_note) == (True, ENDED)
    timing = measured("time.sleep(.02)\nw.torch.cuda.synchronize()", w=gpu_work, time=time)
    assert timing.gpu_note == NO_SIGN


def test_synchronizations_by_line(gpu_work: Any) -> None:
    x = gpu_work.torch.zeros(4, device="cuda")
    cell = "for i in range(3):\n    w.sleep(.01)\n    x.sum().item()\nx.cpu(); x[x > 1]"
    timing = measured(cell, w=gpu_work, x=x)
    check_sum(timing)
    found = by_number(timing)
    assert found[3].syncs == 0
    assert [(s.call, s.count) for s in found[4].synchronizations] == [(".item()", 3)]
    assert found[4].sync_time == pytest.approx(0.03, rel=0.02)
    assert {s.call for s in found[5].synchronizations} == {".cpu()", "boolean mask"}
    assert lines_of(timing).verdict is not None


def test_those_of_a_backward_pass_count_to_its_line(gpu_work: Any) -> None:
    torch = gpu_work.torch

    class Waits(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            gpu_work.sleep(0.02)
            gradient.sum().item()
            return gradient

    x = torch.zeros(4, device="cuda", requires_grad=True)
    found = by_number(measured("y = Waits.apply(x).sum()\ny.backward()", Waits=Waits, x=x))
    assert found[2].syncs == 0
    assert [(s.call, s.count) for s in found[3].synchronizations] == [(".item()", 1)]
    assert found[3].sync_time == pytest.approx(0.02, rel=0.02)


def test_input_waits(gpu_work: Any) -> None:
    loading = 0.0

    def loader() -> Any:
        nonlocal loading
        for i in range(5):
            began = time.perf_counter()
            time.sleep(0.03)
            loading += time.perf_counter() - began
            yield i

    timing = measured("for batch in loader():\n    w.sleep(.01)", w=gpu_work, loader=loader)
    check_sum(timing)
    found = by_number(timing)
    waited = found[2].input_wait
    assert waited is not None
    assert loading <= waited <= found[2].host
    assert found[3].input_wait is None
    # The GPU works for 10 ms of each but the first of these 30 ms, or of more on a busy machine.
    found_verdict = re.fullmatch(
        r"the GPU waits for input: line 2, (\d+) % of the wall time", str(lines_of(timing).verdict)
    )
    assert found_verdict is not None
    part = (waited - 0.04) / timing.wall.median
    assert int(found_verdict[1]) == pytest.approx(100 * part, abs=1.5)


def test_computing_what_is_looped_over_is_no_wait_for_input(gpu_work: Any) -> None:
    def read() -> Any:
        time.sleep(0.05)
        return slowly()

    def slowly() -> Any:
        for i in range(4):
            time.sleep(0.03 if i > 1 else 0.0)
            yield i

    source = (
        "for _ in range(2):\n    for batch in read():\n        w.sleep(.001)\n    w.sleep(.001)"
    )
    found = by_number(measured(source, w=gpu_work, read=read))
    waited = found[3].input_wait
    assert waited is not None
    assert waited >= 0.12 * 0.99
    assert found[3].host - waited >= 0.1 * 0.99


def test_a_loop_in_one_line_does_not_wait_for_input_alone(gpu_work: Any) -> None:
    timing = measured("for i in range(5): time.sleep(.03)", w=gpu_work, time=time)
    assert by_number(timing)[2].input_wait is None
    assert lines_of(timing).verdict is None


def test_the_work_of_another_run_goes_to_the_lines(gpu_work: Any) -> None:
    """What lines do that did not run in the timed run is with what lies between them."""

    def step() -> None:
        gpu_work.sleep(0.01)

    timing = measured("step()\nx = 1\nstep()", (step,), step=step)
    function_line = lines_of(timing).functions[0].lines[0].line
    work: dict[Line | None, LineWork] = {
        Line(0, 2): LineWork(0.02, 3, 0.03),
        Line(1, function_line): LineWork(0.05, 5, 0.06),
        Line(0, 9): LineWork(0.001, 1, 0.001),
        None: LineWork(0.002, 2, 0.002),
    }
    with_work = with_kernels(timing, work)
    found, lines = by_number(with_work), lines_of(with_work)
    assert (found[2].busy, found[2].kernels, found[2].kernel_time) == (0.02, 3, 0.03)
    assert (found[3].busy, found[3].kernels) == (0.0, 0)
    assert lines.functions[0].lines[0].kernels == 5
    assert lines.between is not None
    assert lines.between.busy == pytest.approx(0.003)
    assert lines.between.kernels == 3
    assert found[2].gpu == by_number(timing)[2].gpu
    noted = lines_of(without_kernels(timing, "for a reason"))
    assert noted.notes[-1] == "no busy times of lines: for a reason"
    assert noted.cell == lines_of(timing).cell


def test_the_verdict_uses_the_kernels(gpu_work: Any) -> None:
    timing = measured(
        "w.torch.cuda.synchronize()\nfor i in range(2000):\n    w.sleep(1e-6)", w=gpu_work
    )
    assert lines_of(timing).verdict is None
    work = {Line(0, 4): LineWork(2e-3, 2000, 2e-3)}
    with_work = with_kernels(timing, {**work})
    assert lines_of(with_work).verdict == "launch-bound: 2,000 kernels of 1 µs in line 4"


def test_where_a_device_is_first_used(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first use is in a line whose time is not known; those below have theirs."""
    in_use = [(0,)]

    def use() -> None:
        in_use[:] = [(0, 1)]
        gpu_work.sleep(0.01, 1)

    monkeypatch.setattr(torch_cuda, "contexts", lambda: in_use[0])
    cell = "w.sleep(.01)\nuse()\nw.sleep(.02)\nw.torch.cuda.synchronize(1)\n"
    cell += "w.sleep(.02)\nw.sleep(.01, 1)"
    timing = measured(cell, w=gpu_work, use=use)
    found = by_number(timing)
    assert timing.gpu is None
    assert found[2].gpu == pytest.approx(0.01, rel=0.02)
    assert [found[i].gpu for i in (3, 4, 5)] == [None] * 3  # it is at work with what is not known
    assert found[6].gpu == pytest.approx(0.02, rel=0.02)
    assert found[7].gpu == pytest.approx(0.0, abs=MARKS)
    assert lines_of(timing).between is not None
    assert lines_of(timing).between.gpu is None


def test_under_another_tracer(gpu_work: Any) -> None:
    """A debugger's or a coverage tool's: the cell runs without, and that is said."""

    def tracer(*_: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        timing = measured("w.sleep(.01)", w=gpu_work)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert timing.lines is None
    assert any("another tracer" in note for note in timing.notes)


def test_within_lines_that_are_measured(gpu_work: Any) -> None:
    outer = TraceEvents({}, cast(Any, None))
    outer.start()
    try:
        timing = measured("w.sleep(.01)", w=gpu_work)
    finally:
        outer.stop()
    assert timing.lines is None
    (note,) = (note for note in timing.notes if note.startswith("no times of lines"))
    assert note.endswith("those of the code around it are being measured")


def test_nothing_stays_wrapped(gpu_work: Any) -> None:
    torch = gpu_work.torch
    before = {**vars(torch.Tensor)}, {**vars(torch)}, {**vars(torch._C)}, [*sys.meta_path]
    measured("w.on_side(.01)\n1 / 0", w=gpu_work)
    after = {**vars(torch.Tensor)}, {**vars(torch)}, {**vars(torch._C)}, [*sys.meta_path]
    assert after == before
    assert sys.gettrace() is None


def test_a_capture_goes_on(gpu_work: Any) -> None:
    torch = gpu_work.torch
    cell = (
        "g = t.cuda.CUDAGraph()\nx = t.zeros(8, device='cuda')\nwith t.cuda.graph(g):\n"
        "    y = x + 1\n    z = y * 2\ng.replay()\nt.cuda.synchronize()\nw.sleep(.02)"
    )
    timing = measured(cell, w=gpu_work, t=torch)
    assert not timing.partial
    check_sum(timing)
    assert by_number(timing)[9].gpu == pytest.approx(0.02, rel=0.02)


def test_a_device_that_fails(gpu_work: Any, virtual_gpu: Any) -> None:
    """There are no GPU times of lines then, and that is said; those of the host are there."""
    virtual_gpu.fault("cudaEventElapsedTime", 999)
    timing = measured("w.sleep(.01)\ntime.sleep(.02)", time=time, w=gpu_work)
    found = by_number(timing)
    assert found[2].gpu is None
    assert 0.02 <= found[3].host <= in_total(timing)
    assert any("no GPU time of lines" in note for note in lines_of(timing).notes)


def test_lines_after_the_recursion_limit(gpu_work: Any) -> None:
    cell = (
        "def f(n): return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError:\n    pass\n"
        "w.sleep(.02)\nx = 1"
    )
    timing = measured(cell, w=gpu_work)
    assert by_number(timing)[7].gpu == pytest.approx(0.02, rel=0.02)
    assert 8 in by_number(timing)
    notes = [note for note in lines_of(timing).notes if "lines" in note and "measuring" not in note]
    if not hasattr(sys, "monitoring"):
        expected = "the recursion limit was reached: lines that ran after it are missing"
        assert sys.gettrace() is not None or notes == [expected]


@pytest.mark.parametrize("seconds", [0.0, 1e-4])
def test_work_of_a_loop_that_has_ended_is_seen_by_its_lines(seconds: float, gpu_work: Any) -> None:
    """It leaves no sign outside; and of a loop without work, none is said to be sampled."""
    work = "w.sleep(t)" if seconds else "y = t"
    cell = f"for i in range(2000):\n    {work}\n    time.sleep(0.0002)"
    timing = measured(cell, w=gpu_work, t=seconds, time=time)
    lines = lines_of(timing)
    sampled = [note for note in lines.notes if note.startswith("GPU time by a sample")]
    assert (timing.gpu_note == NO_SIGN) is not bool(seconds)
    assert bool(seconds) or not sampled


def test_no_verdict_where_lines_are_missing(gpu_work: Any) -> None:
    """The line that replaces the tracer has the time of those that follow."""
    cell = "sys.settrace(lambda *_: None)\nw.sleep(.01)\nsys.settrace(None)\nw.sleep(.02)"
    lines = lines_of(measured(cell, w=gpu_work, sys=sys))
    is_monitored = hasattr(sys, "monitoring")  # another tool's tracing is no matter there
    assert lines.complete is is_monitored
    assert (lines.verdict is None) is not is_monitored
