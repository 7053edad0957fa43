"""Lines of known duration are reported with that duration, and add up to the cell."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from contextlib import suppress
from math import fsum
from typing import Any

import pytest

from gpumagic.results.base import as_text
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.line_timings import LineTiming, LineTimings
from gpumagic.timing.lines import line_profiler
from gpumagic.timing.lines.marks import DeviceMarks
from gpumagic.timing.summary import WAITED
from tests.support.captures import capture_elsewhere
from tests.support.line_cells import measured

#: What the marks at the boundaries of a line may add to its time.
MARKS = 20e-6


def lines_of(timing: CudaTiming) -> LineTimings:
    assert timing.lines is not None, timing.notes
    return timing.lines


def by_number(timing: CudaTiming) -> dict[int, LineTiming]:
    return {line.line: line for line in lines_of(timing)}


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
    "a block of a stream": (
        "with w.torch.cuda.stream(w.torch.cuda.Stream()):\n    w.sleep(.03)\n    w.sleep(.01)",
        {3: 0.03, 4: 0.01},
    ),
    "two devices side by side": ("w.sleep(.02)\nw.sleep(.05, 1)", {2: 0.02, 3: 0.03}),
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
        assert line.gpu == pytest.approx(duration, rel=0.02, abs=MARKS * hits + 300e-6), number


def test_another_threads_work_counts_to_the_line_that_runs(gpu_work: Any) -> None:
    timing = measured("w.from_thread(.05)\nx = 1", w=gpu_work)
    check_sum(timing)
    found = by_number(timing)
    assert found[2].gpu is not None
    # The thread launches it some time after the line has begun, at most when the line ends.
    assert 0.98 * 0.05 <= found[2].gpu <= 1.02 * 0.05 + found[2].host
    assert found[3].gpu == pytest.approx(0.0, abs=100e-6)


#: Work before all other, so that the GPU is behind the host, and no time is an upper bound.
AHEAD = 0.05

#: A cell, and the work of each line of the functions named ``f`` and ``g``.
CALLS: dict[str, tuple[str, tuple[dict[int, float], ...]]] = {
    "recursion": (
        "def f(n):\n    sleep(.01)\n    if n:\n        f(n - 1)\n    sleep(.001)\nf(3)",
        ({4: 0.04, 5: 0.0, 6: 0.0, 7: 0.004},),
    ),
    "two generators": (
        "def f():\n    sleep(.01)\n    yield 1\n    sleep(.02)\n    yield 2\n    sleep(.001)\n"
        "for a, b in zip(f(), f()):\n    sleep(.1)",
        ({4: 0.02, 5: 0.0, 6: 0.04, 7: 0.0, 8: 0.001},),
    ),
    "an exception passes": (
        "def f(n):\n    sleep(.01)\n    try:\n        if n: f(n - 1)\n        1 / 0\n"
        "    finally:\n        sleep(.001)\n"
        "try:\n    f(1)\nexcept ZeroDivisionError:\n    sleep(.1)",
        ({4: 0.02, 5: 0.0, 6: 0.0, 7: 0.0, 9: 0.002},),
    ),
    "coroutines": (
        "async def f(t):\n    sleep(t)\n    await asyncio.sleep(0)\n    sleep(10 * t)\n"
        "async def main():\n    await asyncio.gather(f(.001), f(.002))\nasyncio.run(main())",
        ({4: 0.003, 5: 0.0, 6: 0.03},),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_moment_counts_to_one_line_of_a_function(name: str, gpu_work: Any) -> None:
    import asyncio

    cell, expected = CALLS[name]
    functions = ("f", "g")[: len(expected)]
    names = {"sleep": gpu_work.sleep, "asyncio": asyncio}
    timing = measured(f"sleep({AHEAD})\n{cell}", functions, **names)
    check_sum(timing)
    for source, true in zip(lines_of(timing).functions, expected, strict=True):
        times = {line.line: line.gpu for line in source.lines}
        approximate = {number: pytest.approx(t, abs=5e-6) for number, t in true.items()}
        assert times == approximate


@pytest.mark.free
def test_at_most(gpu_work: Any) -> None:
    """Only where the GPU may have been idle, for a part of the time that matters."""
    cell = "w.sleep(.01)\nw.torch.cuda.synchronize()\ntime.sleep(.05)\nw.sleep(.05)\nx = 1"
    found = by_number(measured(cell, w=gpu_work, time=time))
    assert [found[i].at_most for i in range(2, 7)] == [False, True, True, False, False]


def test_hits_and_host_time(gpu_work: Any) -> None:
    cell = "for i in range(3):\n    time.sleep(.02)\nif i > 5:\n    x = 1\nf = lambda: i; f(); f()"
    timing = measured(cell, w=gpu_work, time=time)
    assert timing.host is not None
    found = by_number(timing)
    assert {i: line.hits for i, line in found.items()} == {2: 4, 3: 3, 4: 1, 6: 1}
    assert 0.99 * 0.06 <= found[3].host <= timing.host.median
    assert found[3].source == "    time.sleep(.02)"


def fails(n: int = 3) -> None:
    if n:
        fails(n - 1)
    raise ValueError


KEPT: list[Exception] = []


def keeps() -> None:
    """Its frame lives on with the exception."""
    try:
        fails()
    except ValueError as error:
        KEPT.append(error)


#: Cells that call other code, which is not traced, and the hits of their lines.
HITS = {
    "calls": ("f()\nfor i in range(3):\n    f()\nx = 1", {1: 1, 2: 4, 3: 3, 4: 1}),
    "exceptions": (
        "for i in range(2):\n    try:\n        fails()\n    except ValueError:\n        f()\nx = 1",
        {1: 3, 2: 2, 3: 2, 4: 2, 5: 2, 6: 1},
    ),
    "an exception that is kept": (
        "try:\n    fails()\nexcept ValueError as error:\n    kept.append(error)\nx = 1",
        {1: 1, 2: 1, 3: 1, 4: 1, 5: 1},
    ),
    "a callee keeps its exception": (
        "keeps()\nx = 1\nfor i in range(2):\n    f()\ny = 1",
        {1: 1, 2: 1, 3: 3, 4: 2, 5: 1},
    ),
    "suppressed": ("with suppress(ValueError):\n    fails()\nx = 1", {1: 2, 2: 1, 3: 1}),
    "generators": ("g = (f() for i in range(3))\nx = list(g)\ny = 1", {1: 1, 2: 1, 3: 1}),
    "it raises": ("f()\nfails()\nx = 1", {1: 1, 2: 1}),
    "a line that follows itself": ("for i in range(3): f()\nx = 1", {1: 1, 2: 1}),
}


@pytest.mark.parametrize("name", HITS)
def test_lines_go_on_after_what_they_call(name: str) -> None:
    cell, expected = HITS[name]
    names: dict[str, Any] = {"f": lambda: list(range(3)), "fails": fails, "kept": []}
    found = lines_of(measured(cell, suppress=suppress, keeps=keeps, **names))
    KEPT.clear()
    assert {line.line - 1: line.hits for line in found} == expected
    assert not any("missing" in note for note in found.notes)
    assert sys.gettrace() is None or hasattr(sys, "monitoring")


@pytest.mark.free
def test_many_passes(gpu_work: Any) -> None:
    short, long = 5e-6, 50e-6
    cell = "for i in range(3000):\n    w.sleep(short)\n    w.sleep(long)"
    timing = measured(f"w.sleep(.5)\n{cell}", w=gpu_work, short=short, long=long)
    check_sum(timing)
    found = by_number(timing)
    assert found[4].gpu == pytest.approx(3000 * short, rel=0.02)
    assert found[5].gpu == pytest.approx(3000 * long, rel=0.02)


# --- waits ---------------------------------------------------------------------------------------

#: Calls that wait, whoever waits in them: torch, its C++ code, another library, another thread.
WAITS = (
    "x.sum().item()",
    "x[x > 1]",
    "torch.nonzero(x)",
    "bool(x[0])",
    "torch.tensor([0.0], device='cuda')",
    "torch.arange(number)",
    "torch.cuda.synchronize()",
    "event = torch.Event(device='cuda'); event.record(); event.synchronize()",
    "pickle.dumps(x)",
    "t = threading.Thread(target=wait); t.start(); t.join()",
)


def waits(cell: str, gpu_work: Any, **names: Any) -> dict[int, tuple[int, float]]:
    """By line, its waits and their time."""
    torch = gpu_work.torch
    torch.cuda.empty_cache()  # what no kernel of the virtual GPU writes is 0 in new memory alone
    number = torch.zeros((), dtype=torch.long).to("cuda")
    names |= {"w": gpu_work, "torch": torch, "x": torch.zeros(4, device="cuda"), "number": number}
    timing = measured(cell, time=time, pickle=pickle, threading=threading, **names)
    assert not timing.partial
    return {number: (line.syncs, line.sync_time) for number, line in by_number(timing).items()}


def test_whoever_waits_is_found_by_time(gpu_work: Any) -> None:
    """Each behind 0.1 s of work, in one cell: a busy host may be held up for milliseconds."""
    number = gpu_work.torch.zeros((), dtype=gpu_work.torch.long).to("cuda")
    cell = "\n".join(f"torch.cuda.empty_cache()\nw.sleep(.1)\n{call}" for call in WAITS)
    found = waits(cell, gpu_work, wait=lambda: gpu_work.torch.arange(number))
    for place, call in enumerate(WAITS):
        assert found[3 + 3 * place][0] == 0
        assert found[4 + 3 * place] == (1, pytest.approx(0.1, rel=0.02)), call


NO_WAITS = {
    "the host works longer than the GPU": "w.sleep(.02)\ntime.sleep(.03)",
    "the GPU works longer": "w.sleep(.02)\ntime.sleep(.015)",
    "nothing to wait for": "torch.cuda.synchronize()\ntime.sleep(.02)",
    "less than matters": "w.sleep(.00005)\ntorch.nonzero(x)",
    "a loader slower than the GPU": "for i in loader(.03):\n    w.sleep(.02)",
    "as long as the GPU by coincidence": (
        "for i in range(100):\n    w.sleep(.0003 * (i % 7))\n    time.sleep(.0006)"
    ),
}


@pytest.mark.parametrize("name", NO_WAITS)
def test_what_is_no_wait(name: str, gpu_work: Any) -> None:
    def loader(seconds: float) -> Any:
        for i in range(5):
            time.sleep(seconds)
            yield i

    found = waits(NO_WAITS[name], gpu_work, loader=loader)
    assert not any(count for count, _ in found.values())


def test_waits_of_a_loop_limit_the_cell_and_are_said(gpu_work: Any) -> None:
    def step() -> None:
        gpu_work.sleep(0.001)
        gpu_work.torch.cuda.synchronize()
        time.sleep(0.0005)

    timing = measured("for i in range(100):\n    step()", (step,), step=step)
    (of_step,) = lines_of(timing).functions
    _, waiting, _ = of_step.lines
    assert 95 <= waiting.syncs <= 100  # the first is near the limit of what is a wait
    assert waiting.sync_time == pytest.approx(0.1, rel=0.05)
    least = "at least " * (waiting.syncs < 100)
    said = f"step, line {waiting.line} waited for the GPU in {least}{waiting.syncs} runs: "
    assert said in str(timing)
    found = lines_of(
        measured(
            "for i in range(50):\n    w.sleep(.001)\n    sync()\n    time.sleep(.0005)",
            w=gpu_work,
            time=time,
            sync=gpu_work.torch.cuda.synchronize,
        )
    )
    assert "of the wall time is waiting for the GPU in line 4 (" in str(found.verdict)


def test_the_gpu_may_wait_for_input(gpu_work: Any) -> None:
    """The loop's own line has the time, whatever it loops over: containers take none."""

    def slowly() -> Any:
        for i in range(5):
            time.sleep(0.03)
            yield i

    class Batches:
        def values(self) -> Any:
            return slowly()

    timing = measured("for batch in b.values():\n    w.sleep(.01)", w=gpu_work, b=Batches())
    assert str(lines_of(timing).verdict).startswith("the GPU may wait for input: line 2, ")
    timing = measured("for batch in b.values():\n    w.sleep(.01)", w=gpu_work, b={1: 2, 3: 4})
    assert "input" not in str(lines_of(timing).verdict)


# --- the measurement itself ----------------------------------------------------------------------


def test_the_cost_is_said(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an empty loop takes for each line is part of the cost, and no line's time."""
    assert line_profiler.tracing_cost() >= 0.0
    monkeypatch.setattr(line_profiler, "tracing_cost", lambda: 1.0)
    timing = measured("for i in range(10):\n    x = i", w=gpu_work)
    assert {line.host for line in lines_of(timing)} == {0.0}
    (note,) = lines_of(timing).notes
    assert "took 100.0 % of the wall time; the host times of short lines are upper" in note


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="there tracing slows nothing else down")
def test_what_tracing_slows_down_is_said(gpu_work: Any) -> None:
    """Python code that lines call, not what is written in C."""

    def inner() -> None:
        time.sleep(0.01)

    says = "before Python 3.12 tracing also slows down the Python code that lines call"
    assert says not in str(measured("for i in range(9):\n    time.sleep(.01)", time=time))
    assert says in str(measured("for i in range(9):\n    inner()", inner=inner))


@pytest.mark.free
def test_lines_are_evidence_of_work_that_has_ended(gpu_work: Any) -> None:
    """They bound the GPU's time from below, and may make it exact."""
    waits = "w.torch.cuda.synchronize()"
    timing = measured(f"time.sleep(.02)\nw.sleep(.02)\n{waits}", w=gpu_work, time=time)
    assert (timing.gpu_seen, timing.gpu_at_most, timing.gpu_note) == (True, True, WAITED)
    assert timing.gpu_at_least.median == pytest.approx(0.02, rel=0.03)
    timing = measured(f"w.sleep(.02)\n{waits}", w=gpu_work)
    assert (timing.gpu_seen, timing.gpu_at_most, timing.gpu_note) == (True, False, None)
    assert timing.gpu.median == pytest.approx(0.02, rel=0.05)
    timing = measured(f"time.sleep(.02)\n{waits}", w=gpu_work, time=time)
    assert (timing.gpu_seen, timing.gpu_at_least) == (False, None)
    assert {line.gpu for line in lines_of(timing)} == {None}


def test_the_device_that_worked_is_named(gpu_work: Any) -> None:
    """Not the one that still works at the end, for what another did; each time of two is a bound.

    A line that gave a device no work has no exact time on it.
    """
    wait = "w.torch.cuda.synchronize(1)"
    timing = measured(f"w.sleep(.04, 1)\n{wait}\nw.sleep(.001)", w=gpu_work)
    assert {*timing.per_device} == {0, 1}
    assert not timing.gpu_at_most, "together they are exact"
    shown = next(line for line in str(timing).splitlines() if " · wall " in line)
    assert "cuda:0 ≤ 41" in shown
    assert "cuda:1 ≤ 4" in shown
    first, *_ = lines_of(timing)
    assert first.bounds == (0,)
    assert first.per_device[1] == pytest.approx(0.04, rel=0.02)
    table = as_text(timing, 120).splitlines()
    row = next(line for line in table if line.lstrip().startswith("2 "))
    assert row.count("≤ ") == 1, "on cuda:0 alone"


def test_another_threads_capture_goes_on(gpu_work: Any) -> None:
    """No event is queried, and no stream, in a mode in which that would end it."""
    torch = gpu_work.torch
    with capture_elsewhere(torch):
        timing = measured("w.sleep(.01)\nx = 1\nw.sleep(.01)", w=gpu_work)
    assert not timing.partial
    captured = capture_elsewhere(torch)

    def capture() -> None:
        torch.cuda.synchronize()
        captured.__enter__()

    cell = "w.sleep(.01)\ncapture()\nfor i in range(9):\n    w.sleep(.001)"
    timing = measured(cell, w=gpu_work, capture=capture)
    captured.__exit__(None, None, None)
    assert not timing.partial


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="there the two do not disturb each other")
def test_under_another_tracer(gpu_work: Any) -> None:
    """A debugger's or a coverage tool's, or ours around it: the cell runs without, and says so."""

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


def test_a_capture_goes_on(gpu_work: Any) -> None:
    cell = (
        "g = t.cuda.CUDAGraph()\nx = t.zeros(8, device='cuda')\nwith t.cuda.graph(g):\n"
        "    y = x + 1\n    z = y * 2\ng.replay()\nt.cuda.synchronize()\nw.sleep(.02)"
    )
    timing = measured(cell, w=gpu_work, t=gpu_work.torch)
    assert not timing.partial
    assert by_number(timing)[9].gpu == pytest.approx(0.02, rel=0.02)


def test_a_device_that_fails(gpu_work: Any, virtual_gpu: Any) -> None:
    """There are no GPU times of lines then, and that is said; those of the host are there."""
    virtual_gpu.fault("cudaEventElapsedTime", 999)
    timing = measured("w.sleep(.01)\ntime.sleep(.02)", time=time, w=gpu_work)
    found = by_number(timing)
    assert found[2].gpu is None
    assert found[3].host >= 0.99 * 0.02
    assert "no GPU time" in str(timing)


@pytest.mark.parametrize("late", ["before", "after"])
def test_a_process_that_loses_the_processor_when_clocks_are_compared(
    late: str, gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 10 ms, around the first mark: no line is said to have had the GPU busy meanwhile."""
    original, counts = DeviceMarks.record, {0: 0, 1: 0}

    def record(marks: DeviceMarks) -> list[Any]:
        counts[marks.ordinal] = count = counts[marks.ordinal] + 1
        if late == "before" and count == 257:
            time.sleep(0.01)
        recorded = original(marks)
        if late == "after" and count == 257:
            time.sleep(0.01)
        return recorded

    monkeypatch.setattr(DeviceMarks, "record", record)
    timing = measured("w.sleep(.001)\ntime.sleep(.05)\nw.sleep(.03)\nx = 1", w=gpu_work, time=time)
    found = by_number(timing)
    assert found[2].gpu == pytest.approx(0.001, rel=0.05)
    assert found[3].at_most
    assert found[3].syncs == 0
    assert timing.gpu_at_least.median <= 0.0312
    assert found[4].gpu == pytest.approx(0.03, rel=0.02)
    assert min(counts.values()) > 257
