"""``%%cudatime --lines``: the lines of a cell as it is typed, and special cases."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.results import CudaTiming
from gpumagic.results.line_timing import LineTimings
from gpumagic.timing.line_timer import LineTimer
from gpumagic.timing.marked_runs import MarkedRuns
from gpumagic.timing.stream_marks import StreamMarks
from tests.support.own_files import names_our_files
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND


@pytest.fixture
def lines(ip: Any, run_cell: Any, gpu_work: Any) -> Callable[..., LineTimings]:
    """``lines(cell, options="", raising=True)``: those of its timing, which is named ``timing``."""
    ip.user_ns.update(w=gpu_work, torch=gpu_work.torch)

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
    assert shown[0] == (
        "GPU-bound: the GPU is busy for 100 % of the wall time, most of it with line 2"
    )
    assert shown[1].split() == ["Line", "Hits", "GPU", "Host", "Source"]  # as wide as it is here
    assert shown[-1].startswith("30.0 ms on cuda:0")
    shown = run_cell("%cudatime --lines w.sleep(.03)").text
    assert "  1     1  " in shown
    timing = run_cell("%%cudatime --lines -o -q\nw.sleep(.03)").value
    assert len(timing.lines) == 1


def test_functions(lines: Any, run_cell: Any) -> None:
    run_cell("def before():\n    w.sleep(.01)\nclass A:\n    def step(self):\n        before()")
    found = lines("def here():\n    before()\nhere()\nA().step()", "-f here -f A.step -f before")
    assert [source.name for source in found.functions] == ["here", "A.step", "before"]
    here, step, before = (source.lines for source in found.functions)
    assert [(line.line, line.hits) for line in here] == [(3, 1)]
    assert step[0].gpu == pytest.approx(0.01, rel=0.02)
    assert (before[0].hits, before[0].gpu) == (2, pytest.approx(0.02, rel=0.02))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-f step", "-f names a function for --lines"),
        (
            "--lines -n 3 -r 2",
            "a single run, and -n, -r repeat it: leave out -n, -r",
        ),
        ("--lines --repeat", "a single run, and --repeat repeats it: leave out --repeat"),
        ("--energy --lines", "a single run, and --energy repeats it: leave out --energy"),
        ("--lines -f nowhere", "there is no 'nowhere' here"),
        ("--lines -f int", "is a class"),
        ("--lines --cluster", "--lines measures this process, not engines"),
    ],
)
def test_bad_input_runs_nothing(line: str, says: str, ip: Any, run_cell: Any) -> None:
    with pytest.raises(UsageError, match=says):
        run_cell(f"%%cudatime {line}\nran = True")
    assert "ran" not in ip.user_ns


def test_an_exception_passes(lines: Any, ip: Any, run_cell: Any) -> None:
    found = lines("w.sleep(.02)\nraise KeyError('mine')", raising=False)
    assert ip.user_ns["timing"].partial
    assert found[0].gpu == pytest.approx(0.02, rel=0.02)
    assert found.verdict is None
    ran = run_cell("%%cudatime --lines\nraise KeyError('mine')", raising=False)
    assert isinstance(ran.error, KeyError)
    assert not names_our_files(ran.stdout + ran.stderr)


def test_what_torch_raises_shows_only_the_users_lines(lines: Any, run_cell: Any) -> None:
    cell = "%%cudatime --lines\nx = torch.zeros(2, device='cuda')\nx.item()"
    lines("x = 1")  # names torch
    ran = run_cell(cell, raising=False)
    assert isinstance(ran.error, RuntimeError)
    assert not names_our_files(ran.stdout + ran.stderr)


def test_an_interrupt(lines: Any, ip: Any) -> None:
    found = lines("w.sleep(.02)\nraise KeyboardInterrupt", raising=False)
    assert ip.user_ns["timing"].partial
    assert found[0].gpu == pytest.approx(0.02, rel=0.02)


def test_a_cell_that_awaits(lines: Any) -> None:
    """What other tasks do meanwhile belongs to the line that waits for it."""
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


def test_awaited_time_is_its_lines(lines: Any) -> None:
    found = lines(
        "import asyncio, time\nasync def step():\n    time.sleep(.02)\n    await asyncio.sleep(0)\n"
        "    time.sleep(.03)\nfor i in range(2):\n    await step()\nx = 1",
        "-f step",
    )
    by_number = {line.line: line for line in found}
    assert by_number[8].hits == 2
    assert by_number[8].host >= 0.1
    (step,) = found.functions
    assert [(line.line, line.hits) for line in step.lines] == [(4, 2), (5, 2), (6, 2)]
    assert step.lines[0].host >= 0.04


@pytest.mark.parametrize(
    "ends",
    ["t.cancel()", "t.set_exception(OSError())", "t.set_result(1)"],
    ids=["cancelled", "an exception", "a result"],
)
def test_what_is_awaited_in_vain(ends: str, lines: Any) -> None:
    """However it ends, the time is that of the line that waited."""
    found = lines(
        "import asyncio, time\nt = asyncio.get_running_loop().create_future()\n"
        f"async def other():\n    time.sleep(.03)\n    {ends}\n"
        "o = asyncio.ensure_future(other())\ntry:\n    await t\n"
        "except (asyncio.CancelledError, OSError):\n    time.sleep(.01)\nawait o\nx = 1"
    )
    by_number = {line.line: line for line in found}
    assert by_number[9].hits == 1
    assert by_number[9].host >= 0.03
    assert found.between.host < 0.03
    assert by_number[13].hits == 1
    if "result" not in ends:
        assert by_number[11].host >= 0.01


def test_an_interrupted_wait(lines: Any) -> None:
    """It ends the cell; what it waited for counts to its line."""
    found = lines(
        "import asyncio, time\ndef interrupt():\n    time.sleep(.03)\n    raise KeyboardInterrupt\n"
        "asyncio.get_running_loop().call_soon(interrupt)\nawait asyncio.sleep(60)\nx = 1",
        raising=False,
    )
    by_number = {line.line: line for line in found}
    assert by_number[7].hits == 1
    assert by_number[7].host >= 0.03
    assert found.between.host < 0.03


def test_hits_are_passes_of_a_statement(lines: Any) -> None:
    """All of it counts to its first line, however many lines it is written on."""
    found = lines(
        "for i in range(3):\n    x = dict(\n      a=w.sleep(.01),\n      b=w.sleep(.02)\n    )\n"
        "y = [\n    w.sleep(.01)\n    for i in range(4)\n]\n"
        "class A:\n    a = 1\n    b = (\n        2\n    )"
    )
    assert {line.line: line.hits for line in found} == {2: 4, 3: 3, 7: 1, 11: 1, 12: 1, 13: 1}
    by_number = {line.line: line for line in found}
    assert by_number[3].gpu == pytest.approx(0.09, rel=0.02)
    assert by_number[7].gpu == pytest.approx(0.04, rel=0.02)


def test_a_function_by_two_names_is_one_table(lines: Any, run_cell: Any) -> None:
    run_cell("class Net:\n    def forward(self):\n        w.sleep(.01)\nnet = Net()")
    found = lines("net.forward()", "-f Net.forward -f net.forward")
    (source,) = found.functions
    assert source.name == "Net.forward, net.forward"
    assert source.lines[0].gpu == pytest.approx(0.01, rel=0.02)


SLOW = """\
import time
def slow():
    for i in range(3):
        time.sleep(.01)
        yield i
"""


@pytest.mark.parametrize(
    ("over", "waits"),
    [
        *(("range(3)", False), ("enumerate([1, 2, 3])", False), ("items", False)),
        *(("slow()", True), ("tqdm(slow(), file=nowhere)", True), ("(i for i in slow())", True)),
    ],
)
def test_only_what_takes_time_is_a_wait_for_input(
    over: str, waits: bool, lines: Any, ip: Any, run_cell: Any
) -> None:
    run_cell(SLOW)
    run_cell("import io; from tqdm import tqdm; tqdm.monitor_interval = 0")
    run_cell("nowhere = io.StringIO()")
    cell = f"items = [1, 2, 3]\nfor i in {over}:\n    x = i"
    found = {line.line: line for line in lines(cell)}
    assert (found[3].input_wait is not None) is waits
    assert ("waits for the next input" in str(ip.user_ns["timing"])) is waits


def test_next_waits_for_input(lines: Any, run_cell: Any) -> None:
    """All of the first batch too, where the loop is over what is made lazily."""
    run_cell(SLOW)
    found = lines("it, ready = slow(), iter([1])\nfirst = next(it)\nnext(it)\nx = next(ready)")
    made, first, second, ready = (line.input_wait for line in found.cell.lines)
    assert (made, ready) == (None, None)
    assert min(first or 0.0, second or 0.0) > 0.0099


def test_loops_in_functions_wait_for_input_too(lines: Any, run_cell: Any) -> None:
    run_cell(f"{SLOW}def train(loader):\n    for batch in loader:\n        w.sleep(.001)")
    found = lines("train(slow())", "-f train")
    assert found.functions[0].lines[0].input_wait == pytest.approx(0.03, rel=0.05)


def test_a_cell_that_forks(lines: Any, ip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child records no event and reads none; the parent's figures are its own."""
    record, reader, writer = StreamMarks.record, *os.pipe()

    def recorded(marks: Any) -> Any:
        os.write(writer, b"%d " % os.getpid())
        return record(marks)

    monkeypatch.setattr(StreamMarks, "record", recorded)
    ip.user_ns["warnings"] = warnings
    found = lines(
        "import os\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n"
        "    child = os.fork()\n"
        "if child == 0:\n    for i in range(3):\n        x = i\n    os._exit(0)\n"
        "status = os.waitpid(child, 0)[1]\nw.sleep(.02)"
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        processes = set(pipe.read().split())
    assert ip.user_ns["status"] == 0
    assert processes == {b"%d" % os.getpid()}
    by_number = {line.line: line for line in found}
    assert by_number[11].gpu == pytest.approx(0.02, rel=0.02)
    assert 7 not in by_number


@pytest.mark.parametrize(
    ("owner", "step", "body"),
    [(LineTimer, "read", "n += 1"), (MarkedRuns, "go_to", "time.sleep(4e-4)")],
    ids=["short lines", "long lines"],
)
def test_ctrl_c_in_a_python_loop(
    owner: Any, step: str, body: str, ip: Any, run_cell: Any, gpu_work: Any
) -> None:
    """Also while our code runs: only the user's lines are shown, and a cell may catch it."""
    original = getattr(owner, step)
    readings = 0

    def interrupting(ours: Any, *arguments: Any) -> Any:
        nonlocal readings
        marks = ours.marks if owner is LineTimer else ours._shared.marks
        readings += marks.note is None  # not while the cost of tracing is measured
        if readings == 100:
            signal.raise_signal(signal.SIGINT)
        return original(ours, *arguments)

    before = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, step, interrupting)
        ran = run_cell(
            f"%%cudatime --lines -q -v timing\nimport time; n = 0\nwhile True:\n    {body}",
            raising=False,
        )
        assert isinstance(ran.error, KeyboardInterrupt)
        assert not names_our_files(ran.stdout + ran.stderr)
        assert ip.user_ns["timing"].partial
        readings = 0
        run_cell(
            f"%%cudatime --lines -q -v timing\ntry:\n    while True:\n        {body}\n"
            "except KeyboardInterrupt:\n    for i in range(5):\n        x = i\ny = 2"
        )
    timing = ip.user_ns["timing"]
    hits = {line.line: line.hits for line in timing.lines}
    assert (hits[6], hits[7], hits[8]) == (6, 5, 1)
    assert not any("missing" in note for note in timing.lines.notes)
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize("error", ["TimeoutError", "RuntimeError"])
@pytest.mark.parametrize(
    ("owner", "step", "body"),
    [(StreamMarks, "record", "n += 1"), (MarkedRuns, "go_to", "time.sleep(4e-4)")],
    ids=["short lines", "long lines"],
)
def test_what_a_signals_handler_raises_is_the_cells(
    owner: Any, step: str, body: str, error: str, ip: Any, run_cell: Any, gpu_work: Any
) -> None:
    """As a time limit does, also where it comes while our code runs."""
    original = getattr(owner, step)
    readings = 0

    def interrupting(ours: Any, *arguments: Any) -> Any:
        nonlocal readings
        readings += owner is StreamMarks or ours._shared.marks.note is None
        if readings == 60:
            signal.raise_signal(signal.SIGUSR1)
        return original(ours, *arguments)

    run_cell(
        "import signal, time\nn = 0\ndef limit(number, frame):\n"
        f"    raise {error}('late')\nbefore = signal.signal(signal.SIGUSR1, limit)"
    )
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, step, interrupting)
            run_cell(
                f"%%cudatime --lines -q -v timing\ntry:\n    while True:\n        {body}\n"
                f"except {error} as error:\n    caught = str(error)"
            )
    finally:
        run_cell("signal.signal(signal.SIGUSR1, before)")
    assert readings >= 60
    assert ip.user_ns["caught"] == "late"
    # What a trace function raises ends the tracing; a step that was not made can be left out.
    goes_on = hasattr(sys, "monitoring") and owner is MarkedRuns
    missing = [note for note in ip.user_ns["timing"].lines.notes if "missing" in note]
    assert bool(missing) != goes_on


def test_a_generator_that_yields(lines: Any) -> None:
    found = lines(
        "def many():\n    for i in range(3):\n        w.sleep(.01)\n        yield i\n"
        "for i in many():\n    w.sleep(.02)",
        "-f many",
    )
    assert {line.line: line.hits for line in found}[6] == 4
    assert found[1].gpu == pytest.approx(0.03, rel=0.02)
    assert found[2].gpu == pytest.approx(0.06, rel=0.02)
    (many,) = found.functions
    assert [(line.line, line.hits) for line in many.lines] == [(3, 4), (4, 3), (5, 3)]
    assert many.lines[1].gpu == pytest.approx(0.03, rel=0.02)


def test_code_without_a_source(lines: Any, run_cell: Any) -> None:
    run_cell("made = {}\nexec('def f():\\n    w.sleep(.01)\\n', {'w': w}, made)\nf = made['f']")
    found = lines("f()\nexec('w.sleep(.02)')", "-f f")
    assert [line.gpu for line in found] == [
        pytest.approx(0.01, rel=0.02),
        pytest.approx(0.02, rel=0.02),
    ]
    assert found.functions[0].lines[0].gpu == pytest.approx(0.01, rel=0.02)


def test_ten_thousand_lines(lines: Any, ip: Any) -> None:
    """Few of them are shown: what took a thousandth of the time, with lines on either side."""
    found = lines("\n".join(["x = 1"] * 10_000 + ["w.sleep(.05)"]))
    assert len(found) == 10_001
    shown = str(ip.user_ns["timing"])
    assert "10002" in shown
    # Lines of the host in which this process had to wait for another one may be among them.
    waited = [each for each in found if each.host >= 1e-3 * 0.05]
    assert len(shown.splitlines()) < 100 + 9 * len(waited)


def test_magics_inside(lines: Any, ip: Any) -> None:
    """Another cell magic of ours in a line of the cell: its own lines are not traced again."""
    found = lines(
        "%time w.sleep(.01)\nget_ipython().run_cell_magic('cudatime', '--lines -q', 'y = 3')"
    )
    assert found[0].gpu == pytest.approx(0.01, rel=0.02)
    assert ip.user_ns["y"] == 3


def test_without_a_gpu(kernel: Any) -> None:
    """Host times all the same, and no verdict on what is not known."""
    from tests.virtual_gpu import Scenario

    one = kernel(Scenario(driver=False))
    one.run("%%cudatime --lines -q -v before\nx = 1")  # torch is not imported
    assert one.value("[line.gpu for line in before.lines]") == [None]
    one.run("import torch, time")
    one.run("%%cudatime --lines -q -v timing\ntime.sleep(.01)\ntorch.ones(3).sum().item()")
    assert one.value("[(line.gpu, line.syncs) for line in timing.lines]") == [(None, 0)] * 2
    assert one.value("timing.lines[0].host") >= 0.01
    assert one.value("(timing.lines.verdict, timing.gpu_note is None)") == (None, False)
    assert "GPU " not in one.value("str(timing.lines)")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of Python 3.12 on")
def test_no_tool_is_left(lines: Any) -> None:
    lines("x = 1")
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009
    assert [monitoring.get_tool(each) for each in (3, 4)] == [None, None]


CELL = """\
import inspect, pickle
@torch.jit.script
def g(a):
    return torch.where(a > 0, a, a)
class Mine(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        seen.append(function)
        return super().__torch_function__(function, types, arguments, named or {})
seen = []
torch.ones(2).as_subclass(Mine).nonzero(), torch.nonzero(torch.ones(2).as_subclass(Mine))
made, item = torch.tensor, torch.Tensor.item
pickled = pickle.loads(pickle.dumps(torch.tensor))
builtin = inspect.isbuiltin(torch.where), inspect.ismethoddescriptor(torch.Tensor.item)
traced = torch.jit.trace(lambda a: torch.nonzero(a), torch.ones(2))
code = str(traced.inlined_graph)
"""


def test_torchs_functions_are_as_without(lines: Any, ip: Any) -> None:
    names = ip.user_ns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        lines(CELL)
    torch = names["torch"]
    assert names["made"] is names["pickled"] is torch.tensor
    assert names["item"] is torch.Tensor.item
    assert names["builtin"] == (True, True)
    assert names["seen"][0] is torch.Tensor.nonzero
    assert torch.nonzero in names["seen"]
    assert "gpumagic" not in names["code"]


def test_the_cells_own_synchronize_is_not_called(lines: Any, ip: Any) -> None:
    calls: list[Any] = []
    ip.user_ns["calls"] = calls
    found = lines(
        "real = torch.cuda.synchronize\n"
        "torch.cuda.synchronize = lambda *a: calls.append(a)\nw.sleep(.01)"
    )
    ip.user_ns["torch"].cuda.synchronize = ip.user_ns["real"]
    assert calls == []
    assert found[2].gpu == pytest.approx(0.01, rel=0.02)


BREAKS = """\
def body(a):
    b = a * 2
    if b.sum().item() > 1e9:
        b = b + 1
    with torch.cuda.stream(side):
        c = b.sum().tolist()
    d = b.cpu()
    torch.cuda.synchronize()
    return b[a.long()].sum() + c + torch.Tensor.item(a.sum()) + d.sum().item()
"""
RUN = """\
with warnings.catch_warnings():
    warnings.simplefilter("error")
    for i in range(3): torch.compile(body, backend="eager")(x)
"""
COUNTERS = "{k: dict(v) for k, v in torch._dynamo.utils.counters.items()}"


def test_functions_are_compiled_as_without(kernel: Any) -> None:
    """In as many graphs, with as many graph breaks; and all that waits is counted afterwards."""
    one = kernel()
    one.run(
        "import torch, warnings\nx = torch.ones(4, device='cuda')\nside = torch.cuda.Stream()\n"
        "unwrapped = torch.Tensor.item, torch.where"
    )
    # In one graph, in the first cell with the compiler and later.
    one.run(
        "%%cudatime --lines -q -v timing\ndef g(x):\n"
        "    y = torch.where(x > 0, x, -x)[x.shape[0] - 1 :].to(torch.float64)\n"
        "    return y.sum() + torch.tensor(2.0)\n"
        "f = torch.compile(g, backend='eager', fullgraph=True)\nf(x)\nf(x)\nx[0].item()"
    )
    calls = "[s.call for line in timing.lines for s in line.synchronizations if not s.at_most]"
    assert one.value(calls) == [".item()"]
    one.run("stats = torch._dynamo.utils.counters['stats']\nf(x)")
    one.run("%%cudatime --lines -q\nf(x)\nf(x)")
    one.run("%%cudatime -q\nf(x)\nf(x)")
    assert one.value("stats['unique_graphs']") == 1
    assert one.value("(torch.Tensor.item, torch.where) == unwrapped") is True
    tables = "torch._dynamo.variables.tensor"
    if one.value(f"hasattr({tables}, 'all_tensor_attrs')"):  # torch 2.6 has none
        assert one.value(f"{tables}.all_tensor_attrs['item'] is torch.Tensor.item") is True

    counted = []
    for magic in ("", "%%cudatime\n", "%%cudatime --lines -v timing\n"):
        one.run(f"torch._dynamo.reset(); torch._dynamo.utils.counters.clear()\n{BREAKS}")
        ran = one.run(magic + RUN)
        assert not names_our_files(ran.stderr + ran.stdout)
        counted.append(one.value(COUNTERS))
    assert counted[0] == counted[1] == counted[2]
    assert counted[0]["frames"]["total"] > 3
    assert not names_our_files(ran.text)
    found = one.value("{s.call: s.count for line in timing.lines for s in line.synchronizations}")
    assert (found[".item()"], found[".tolist()"], found[".cpu()"]) == (3, 3, 3)
    handler = "torch._dynamo.callback.callback_handler"
    assert one.value(f"{handler}.start_callbacks + {handler}.end_callbacks") == []

    # The compiler is loaded: what is not wrapped is found all the same.
    one.run("number = torch.zeros((), dtype=torch.long).to('cuda')")
    for seconds in (0.3, 3.0, 30.0):
        one.run(
            "%%cudatime --lines -q -v timing\ntorch.manual_seed(0)\n"
            f"torch.cuda._sleep({int(seconds * SLEEP_CYCLES_PER_SECOND)})\ny = torch.arange(number)"
        )
        syncs = one.value("[line.syncs for line in timing.lines]")
        if syncs[2]:
            break  # else the machine held it up, and there was nothing to wait for
    assert syncs == [0, 0, 1]


def test_a_last_expression_on_the_line_of_another_statement(ip: Any, run_cell: Any) -> None:
    """It is compiled by itself, and belongs to the same run of the line."""
    cell = "y = 2\nif (abs(y)\n        .real) > 1: y = 3\nx = 0; x = x + 1; x"
    assert run_cell(f"%%cudatime --lines -v t\n{cell}").value == 1
    assert [(line.line, line.hits) for line in ip.user_ns["t"].lines] == [(2, 1), (3, 1), (5, 1)]
    run_cell("%%cudatime --lines -v t\nfor x in range(3): x\nx")
    assert [(line.line, line.hits) for line in ip.user_ns["t"].lines] == [(2, 1), (3, 1)]


def test_lines_without_a_sign_of_gpu_work_have_host_times(
    ip: Any, run_cell: Any, gpu_work: Any
) -> None:
    """As the cell has no GPU time, of which theirs are parts."""
    ip.user_ns |= {"time": time, "sleep": gpu_work.sleep, "torch": gpu_work.torch}
    shown = run_cell("%%cudatime --lines -v timing\ntime.sleep(.02)\ny = 1").text
    timing = ip.user_ns["timing"]
    assert timing.gpu is None
    assert [(line.gpu, line.per_device) for line in timing.lines] == [(None, {})] * 2
    assert timing.lines[0].host >= 0.02
    assert "≤" not in shown
    assert "no sign of GPU work" in shown
    run_cell("%%cudatime --lines -q -v timing\nsleep(.02); torch.cuda.synchronize()\ny = 1")
    timing = ip.user_ns["timing"]
    assert timing.lines[0].gpu >= 0.98 * 0.02
    assert timing.gpu.median >= 0.98 * 0.02


@pytest.mark.parametrize("inner", ["", "--lines "])
@pytest.mark.parametrize("outer", ["", "--lines "])
def test_waits_are_signs_around_a_cell_and_in_it(
    outer: str, inner: str, ip: Any, run_cell: Any, gpu_work: Any
) -> None:
    """Whichever wraps torch's functions last, the others see the waits too."""
    x = gpu_work.torch.ones(4, device="cuda")
    gpu_work.torch.cuda.synchronize()
    ip.user_ns |= {"sleep": gpu_work.sleep, "x": x}
    before = {**vars(gpu_work.torch.Tensor)}
    run_cell(
        f"%%cudatime {outer}-q -v around\n"
        f"get_ipython().run_cell_magic('cudatime', '{inner}-q -v within', 'sleep(.01)\\nx.cpu()')\n"
        "y = 1"
    )
    for name in ("around", "within"):
        timing = ip.user_ns[name]
        assert timing.gpu is not None, name
        assert timing.gpu.median >= 0.98 * 0.01
    assert {**vars(gpu_work.torch.Tensor)} == before
