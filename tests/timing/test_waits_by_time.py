"""Waits of calls that are not known are found by the times of their lines, and nothing else is."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pytest

from gpumagic.cells.line_tracer import Line
from gpumagic.results.line_timing import LineTiming, Synchronization
from gpumagic.timing.line_totals import Boundary, Segment, Total
from gpumagic.timing.waiting_calls import UNNAMED
from gpumagic.timing.waits_by_time import WaitsByTime, written_call
from tests.support.line_cells import measured


def lines_of(cell: str, gpu_work: Any, **names: Any) -> dict[int, LineTiming]:
    torch = gpu_work.torch
    torch.cuda.empty_cache()  # what no kernel of the virtual GPU writes is 0 in new memory alone
    timing = measured(
        cell,
        w=gpu_work,
        torch=torch,
        x=torch.zeros(4, device="cuda"),
        number=torch.zeros((), dtype=torch.long).to("cuda"),
        busy=time.sleep,
        **names,
    )
    assert not timing.partial
    assert timing.lines is not None
    return {line.line: line for line in timing.lines}


def is_wait(found: Synchronization, call: str, seconds: float, count: int = 1) -> bool:
    time_is_right = found.time == pytest.approx(seconds, rel=0.01)
    return (found.call, found.count, found.at_most) == (call, count, True) and time_is_right


CALLS = {
    "y = torch.nonzero(x)": "torch.nonzero()",
    "y = torch.masked_select(x, x > 0)": "torch.masked_select()",
    "y = torch.where(x > 0)": "torch.where()",
    # Zeros alone: what is copied to the device is what later kernels leave, as a result's size.
    "y = torch.tensor([0.0], device='cuda')": "torch.tensor()",
    "F.one_hot(x.long())": "F.one_hot()",
    "torch.histc(x)": "torch.histc()",
    "x.as_subclass(Mine).sum().item()": ".item()",
    "torch.Tensor.item(x[0])": UNNAMED,
    "torch.arange(number)": UNNAMED,
    "torch.full((2,), x[0])": UNNAMED,
    "torch.accelerator.current_stream().synchronize()": UNNAMED,
    "event = torch.Event(device='cuda'); event.record(); event.synchronize()": UNNAMED,
    "pickle.dumps(x)": "pickle.dumps()",
    "torch.arange(number); x.tolist()": UNNAMED,
    "wait()": UNNAMED,
    "t = threading.Thread(target=wait); t.start(); t.join()": UNNAMED,
}


@pytest.mark.parametrize("calls", [[*CALLS][:8], [*CALLS][8:]], ids=["named", "unnamed"])
def test_calls_that_are_not_wrapped(calls: list[str], gpu_work: Any) -> None:
    """Each behind 0.1 s of work, in one cell: a busy host may be held up for milliseconds."""
    torch = gpu_work.torch

    class Mine(torch.Tensor):  # type: ignore[misc,name-defined]
        pass

    def wait() -> None:
        torch.arange(number)

    number = torch.zeros((), dtype=torch.long).to("cuda")
    names = {"F": torch.nn.functional, "Mine": Mine, "wait": wait}
    names |= {"pickle": pickle, "threading": threading}
    cell = "\n".join(f"torch.cuda.empty_cache()\nw.sleep(.1)\n{call}" for call in calls)
    found = lines_of(cell, gpu_work, **names)
    for number, call in enumerate(calls):
        assert found[3 + 3 * number].syncs == 0
        line = found[4 + 3 * number]
        unknown = [each for each in line.synchronizations if each.at_most]
        assert len(unknown) == 1, call
        assert is_wait(unknown[0], CALLS[call], 0.1), call
        assert line.sync_time == pytest.approx(0.1, rel=0.01)


NO_WAITS = {
    "the host works longer than the GPU": "w.sleep(.02)\nbusy(.03)",
    "and a little longer": "w.sleep(.02)\nbusy(.0215)",
    "the GPU works longer": "w.sleep(.02)\nbusy(.015)",
    "a line that sleeps": "w.sleep(.02)\ntime.sleep(.02)",
    "nothing to wait for": "w.torch.cuda.synchronize()\nbusy(.02)",
    "a known call waits": "w.sleep(.02)\nbusy(.01); x.sum().item()",
    "a known call waits for what the line queues": "x.sum()\nw.sleep(.02); x.sum().item()",
    "the queue is full": "w.sleep(.02)\nfor i in range(1100): x.add_(1)",
    "less than matters": "w.sleep(.0001)\ntorch.nonzero(x)",
    "an input": "for i in range(3):\n    w.sleep(.02)\n    x = next(items)",
    "a loop": "for i in slowly():\n    w.sleep(.02)",
    "as long as the GPU by coincidence": (
        "for i in range(100):\n    w.sleep(.0003 * (i % 7))\n    busy(.0006)"
    ),
}


@pytest.mark.parametrize("name", NO_WAITS)
def test_no_waits(name: str, gpu_work: Any) -> None:
    def slowly() -> Any:
        for i in range(3):
            busy(0.02)
            yield i

    busy = time.sleep
    names = {"time": time, "slowly": slowly, "items": iter([1, 2, 3])}
    for line in lines_of(NO_WAITS[name], gpu_work, **names).values():
        assert [each for each in line.synchronizations if each.at_most] == [], line.source


def test_repeated_waits_limit_the_cell(gpu_work: Any) -> None:
    torch = gpu_work.torch
    cell = "for i in range(400):\n    w.sleep(.001)\n    read()\n    busy(.0005)"
    number = torch.zeros((), dtype=torch.long).to("cuda")
    timing = measured(cell, w=gpu_work, read=lambda: torch.arange(number), busy=time.sleep)
    assert timing.lines is not None
    waiting, after = timing.lines[2], timing.lines[3]
    (wait,) = waiting.synchronizations
    assert is_wait(wait, UNNAMED, 0.396, 400)
    assert (waiting.syncs, after.syncs) == (400, 0)
    assert str(timing.lines.verdict).startswith("up to 6")
    assert f"waiting for {UNNAMED} in line 4 (400 times)" in str(timing.lines.verdict)
    assert f"line 4 waits for the GPU: {UNNAMED} 400×, ≤ 39" in str(timing)


def test_waits_in_functions_are_in_the_lines_that_call_them(gpu_work: Any) -> None:
    torch = gpu_work.torch
    number = torch.zeros((), dtype=torch.long).to("cuda")

    def step() -> None:
        gpu_work.sleep(0.01)
        torch.arange(number)

    timing = measured("step()\nstep()", (step,), step=step)
    assert timing.lines is not None
    (function,) = timing.lines.functions
    assert [line.syncs for line in function.lines] == [0, 2]
    assert is_wait(function.lines[1].synchronizations[0], UNNAMED, 0.02, 2)
    for line in timing.lines:
        (wait,) = line.synchronizations
        assert is_wait(wait, UNNAMED, 0.01)


def waits(*runs: tuple[float, float | None, float, float]) -> list[float]:
    """Return the waits that are found in a line's runs, by their times; all in milliseconds.

    Each has the host's time, the time between the marks, the time until the second one is recorded,
    and how long known calls waited.
    """
    found, line = WaitsByTime(), Total(256)
    for host, gpu, until_recorded, named in runs:
        line.hits += 1
        run = Segment(line, 1, [line])
        begin, end = Boundary(1.0, 0, []), Boundary(1.0 + host / 1e3, 0, [run])
        recorded = end.entered + until_recorded / 1e3
        end.recorded = recorded, recorded
        found.add(begin, end, None if gpu is None else gpu / 1e3, named / 1e3)
    assert not found.of(line, {})
    of_line = found.of(line, {line: Line(0, 1)})
    assert all(inner == Line(0, 1) for inner, _ in of_line)
    return [1e3 * seconds for _, seconds in of_line]


WAIT = (20.0, 0.1, 0.0, 0.0)
LATE = (20.0, 1.2, 0.0, 0.0)
ENDED_BEFORE = (20.0, 0.0, 1.5, 0.0)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([WAIT], 1),
        ([(20.0, 1.0, 0.01, 0.0)], 1),  # 5 % after the GPU's end
        ([LATE], 0),
        ([(20.0, 1.2, 0.3, 0.0)], 1),  # the mark is late, and not the end of the line
        ([(0.3, 0.05, 0.001, 0.0)], 1),
        ([(0.3, 0.06, 0.001, 0.0)], 0),
        ([(0.25, 0.049, 0.0, 0.0)], 1),
        ([(0.24, 0.049, 0.0, 0.0)], 0),  # less than 0.2 ms
        ([ENDED_BEFORE], 0),  # the GPU went on for longer than the line
        ([(20.0, None, 0.0, 0.0)], 0),
        ([(20.0, 0.1, 0.0, 0.9)], 1),  # beside a short wait of a known call
        ([(20.0, 0.1, 0.0, 1.1)], 0),
        ([(20.0, 20.0, 0.0, 0.0)], 0),  # nothing to wait for
        ([WAIT, LATE], 2),
        ([WAIT, WAIT, LATE], 3),
        ([WAIT, LATE, LATE], 0),
        ([WAIT, (20.0, None, 0.0, 0.0), (20.0, None, 0.0, 0.0)], 0),
        ([WAIT, *[(20.0, 20.0, 0.0, 0.0)] * 3], 1),
        ([WAIT] * 10, 10),
        ([WAIT] * 3 + [LATE] * 6, 9),
        ([WAIT] * 3 + [LATE] * 7, 0),
        ([WAIT] * 4 + [LATE] * 8, 12),
        ([WAIT] * 2 + [LATE] * 3, 0),
        ([WAIT] * 3 + [ENDED_BEFORE] * 3, 3),  # those have not waited
        ([WAIT, *[(0.01, 0.0, 0.0, 0.0)] * 999], 0),  # of a line that is sampled not all are known
    ],
)
def test_which_runs_are_waits(
    runs: list[tuple[float, float | None, float, float]], expected: int
) -> None:
    assert len(waits(*runs)) == expected


def test_runs_that_end_late_have_waited_for_their_time_at_most() -> None:
    """On a busy machine the host goes on late; the sum is a bound of what it has waited."""
    on_time, late = (12.0, 0.1, 0.0, 0.0), (14.0, 2.0, 0.0, 0.0)
    found = waits(*[on_time, late] * 10)
    assert found == pytest.approx([11.9, 14.0] * 10)


def test_a_short_wait_of_a_known_call_leaves_the_rest_unnamed() -> None:
    """As of ``print(x)``, which waits, and then for ``tolist`` what that takes on its own."""
    short, late = (12.0, 0.1, 0.0, 0.07), (14.0, 2.0, 0.0, 1.4)
    assert waits(*[short, late] * 10) == pytest.approx([11.9, 12.6] * 10)
    # That one had waited for the GPU by itself.
    assert waits(*[short] * 5, (14.0, 1.2, 0.0, 12.0)) == pytest.approx([11.9] * 5)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("y = torch.nonzero(x)", "torch.nonzero()"),
        ("    if torch.equal(x, y):", "torch.equal()"),
        ("    elif torch.equal(x, y):", "torch.equal()"),
        ("y = f(\n    torch.unique(x),\n    1,\n)", "torch.unique()"),
        ("torch.nonzero(x), torch.nonzero(y)", "torch.nonzero()"),
        ("torch.nonzero(x), torch.unique(y)", UNNAMED),
        ("torch.linalg.solve(a, b)", "torch.linalg.solve()"),
        ("torch.where(x > 0)", "torch.where()"),
        ("torch.where(x > 0, x, y)", UNNAMED),
        ("torch.tensor([1.0])", UNNAMED),
        ("torch.repeat_interleave(x, n)", "torch.repeat_interleave()"),
        ("torch.repeat_interleave(x, n, output_size=5)", UNNAMED),
        ("np.nonzero(x)", ".nonzero()"),
        ("h.items()", UNNAMED),
        ("torch.cuda._sleep(1); f()", UNNAMED),
        ("time.sleep(1)", None),
        ("sleep(1)", None),
        ("await f()", None),
        ("except KeyError:", UNNAMED),
    ],
)
def test_names_by_the_text(text: str, call: str | None) -> None:
    assert written_call(text.split("\n")) == call
