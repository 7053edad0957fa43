"""``%%gpumem --lines``: exact to the byte, on the line where it is written."""

from __future__ import annotations

import bdb
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest

from gpumagic.memory.peak_ledger import LEDGER
from gpumagic.results import LineMemory, LineReport
from tests.support.allocator import MIB, clear, empty, program, readings
from tests.support.own_files import names_our_files


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
    """By line: change, peak and what stayed, in MiB."""
    found = report.sources[source].devices.get(ordinal, {})
    return {
        number: (m.change / MIB, m.peak / MIB, -1 if m.stayed is None else m.stayed / MIB)
        for number, m in found.items()
    }


# --- on its line --------------------------------------------------------------------------------


def test_each_line(lines: Any) -> None:
    report = lines("a = e(10)\nb = e(4); del b\nc = e(2)\ndel a")
    assert in_mib(report) == {2: (10, 10, 0), 3: (0, 4, 0), 4: (2, 2, 2), 5: (-10, 0, 0)}
    assert report.cell.devices[0].allocated == 2 * MIB
    assert report.cell.devices[0].peak == 14 * MIB
    assert report.elsewhere == {}
    assert report.notes == ()
    assert report.sources[0].devices[0][3] == LineMemory(0, 4 * MIB, 4 * MIB, 4 * MIB, 0)


def test_a_loop_is_summed(lines: Any) -> None:
    report = lines("kept = []\nfor i in range(5):\n    kept.append(e(2))\n    t = e(3)\n    del t")
    assert in_mib(report) == {4: (10, 2, 10), 5: (15, 3, 0), 6: (-15, 0, 0)}


def test_a_multi_line_statement_lands_where_it_is_written(lines: Any) -> None:
    report = lines("d = dict(\n    a=e(2),\n    b=[\n        e(4),\n        e(8)],\n)")
    assert in_mib(report) == {3: (2, 2, 2), 5: (4, 4, 4), 6: (8, 8, 8)}


def test_a_comprehension_lands_on_its_line(lines: Any) -> None:
    one = "x = [e(2) for i in range(3)]"
    several = "y = [\n    e(2)\n    for i in range(3)\n]"
    others = "z = {i: e(1) for i in range(2)}\nn = sum(e(4).numel() for i in range(2))"
    report = lines(f"{one}\n{several}\n{others}")
    assert in_mib(report) == {2: (6, 6, 6), 4: (6, 6, 6), 7: (2, 2, 2), 8: (0, 4, 0)}


def test_a_generator_expression_lands_where_it_is_written_not_where_it_is_run(lines: Any) -> None:
    report = lines("g = (e(2)\n     for i in range(3))\nkept = list(g)")
    assert in_mib(report) == {2: (6, 6, 6)}


def test_the_passes_of_a_comprehension_are_one_run_of_its_lines(lines: Any, run_cell: Any) -> None:
    """The peak of one statement is at least its change; that of a loop is of one pass."""
    report = lines(
        "x = [e(1)\n     for _ in range(4)]\ny = [[e(1),\n      e(2)]\n     for _ in range(3)]\n"
        "for _ in range(3):\n    x.append(\n        e(5))\n"
        "class A:\n    for i in range(3):\n        x.append(\n            e(2)\n        )\n"
        "%time z = 1"
    )
    assert in_mib(report) == {
        **{2: (4, 4, 4), 4: (3, 3, 3), 5: (6, 6, 6)},
        **{9: (15, 5, 15), 13: (6, 2, 6)},
    }
    run_cell(
        "class B:\n    def f(self, n=[1,\n          2]):\n        s = '''\nflush left'''\n"
        "        return [\n            e(n)\n            for n in n]"
    )
    assert in_mib(lines("r = B().f()", "-f B.f"), 1) == {7: (3, 3, 3)}


def test_decorators_and_class_bodies(lines: Any) -> None:
    report = lines(
        "def deco(size):\n    kept.append(e(size))\n    return lambda f: f\nkept = []\n"
        "@deco(\n    3\n)\n@deco(5)\ndef f(): pass\nclass A:\n    x = e(7)"
    )
    assert in_mib(report) == {6: (3, 3, 3), 9: (5, 5, 5), 12: (7, 7, 7)}


def test_what_a_called_function_does_counts_to_the_line(lines: Any) -> None:
    report = lines("def f():\n    t = e(20)\n    return e(5)\nx = f()\nx = f()")
    assert in_mib(report) == {5: (5, 25, 0), 6: (0, 25, 5)}


def test_devices_are_kept_apart(lines: Any) -> None:
    report = lines("a = e(2, 1)\nb = e(3, 0)")
    assert in_mib(report, ordinal=0) == {3: (3, 3, 3)}
    assert in_mib(report, ordinal=1) == {2: (2, 2, 2)}
    assert "cell on cuda:1" in str(report)


def test_a_cell_that_raises(lines: Any, ip: Any) -> None:
    report = lines("a = e(2)\nb = e(3); raise KeyError('mine')\nc = e(4)", raising=False)
    assert in_mib(report) == {2: (2, 2, 2), 3: (3, 3, 3)}
    assert report.cell.partial


def test_a_cell_that_awaits(lines: Any) -> None:
    report = lines(
        "import asyncio\nkept = []\nasync def other():\n    kept.append(e(6))\n"
        "a = e(1)\ntask = asyncio.ensure_future(other())\nawait asyncio.sleep(0.01)\nb = e(2)"
    )
    assert in_mib(report) == {6: (1, 1, 1), 9: (2, 2, 2)}
    assert report.elsewhere == {0: 6 * MIB}
    assert "cuda:0: +6.00 MiB while no line of the cell ran" in str(report)


def test_a_reset_by_the_user_changes_nothing(lines: Any) -> None:
    report = lines(
        "x = [e(8), torch.cuda.reset_peak_memory_stats(),\n"
        "     torch.cuda.reset_accumulated_memory_stats(), e(1)]"
    )
    assert in_mib(report) == {2: (8, 8, 8), 3: (1, 1, 1)}


def test_the_value_and_a_statement(lines: Any, run_cell: Any) -> None:
    assert run_cell("%%gpumem --lines -q\n6 * 7").value == 42
    ran = run_cell("%gpumem --lines -o x = e(3)")
    assert in_mib(ran.value) == {1: (3, 3, 3)}


# --- functions ----------------------------------------------------------------------------------


def test_functions_named(lines: Any, run_cell: Any) -> None:
    run_cell("def f(n):\n    t = e(n)\n    return e(1)")
    report = lines("a = f(10)\nb = f(20)", "-f f")
    assert in_mib(report) == {2: (1, 11, 1), 3: (1, 21, 1)}
    assert in_mib(report, 1) == {2: (30, 20, 0), 3: (2, 1, 2)}
    assert report.sources[1].lines[1] == "    t = e(n)"


def test_a_function_that_the_cell_itself_defines(lines: Any) -> None:
    report = lines("class A:\n    def f(self):\n        return e(3)\nx = A().f()", "-f A.f")
    assert in_mib(report, 1) == {4: (3, 3, 3)}


def test_a_recursion_counts_once(lines: Any, run_cell: Any) -> None:
    run_cell("def f(n):\n    if n == 0: return []\n    x = e(1)\n    return [x, *f(n - 1)]")
    report = lines("x = f(4)", "-f f")
    assert in_mib(report) == {2: (4, 4, 4)}
    assert in_mib(report, 1)[3] == (4, 1, 4)
    assert in_mib(report, 1)[4] == (3, 3, 3)


def test_a_generator_function(lines: Any, run_cell: Any) -> None:
    run_cell("def g():\n    for i in range(3):\n        yield e(2)\n    t = e(9)")
    report = lines("kept = []\nfor x in g():\n    kept.append(e(1))", "-f g")
    assert in_mib(report, 1)[3] == (6, 2, 2)
    assert in_mib(report)[4] == (3, 1, 3)
    assert in_mib(report, 1)[4][:2] == (9, 9)


def test_two_functions_one_calls_the_other(lines: Any, run_cell: Any) -> None:
    run_cell("def inner():\n    return e(2)\ndef outer():\n    a = inner()\n    return e(1)")
    report = lines("x = outer()", "-f inner -f outer")
    assert in_mib(report, 1) == {2: (2, 2, 0)}
    assert in_mib(report, 2) == {4: (2, 2, 0), 5: (1, 1, 1)}
    assert in_mib(report) == {2: (1, 3, 1)}


def test_a_cell_with_nothing_to_run(lines: Any, run_cell: Any) -> None:
    report = lines("# nothing")
    assert "cell: nothing to run" in str(report)
    assert "did not run" not in str(report)
    run_cell("class M(torch.nn.Module):\n    def forward(self, x):\n        return e(2)")
    assert in_mib(lines("r = M()(1)", "-f M.forward"), 1) == {3: (2, 2, 2)}
    assert "M.forward: was not seen to run in this cell's thread" in str(
        lines("M()", "-f M.forward")
    )


@pytest.mark.parametrize(
    ("magic", "said"),
    [
        ("%%gpumem --lines -f nope", "-f nope: there is no 'nope' here"),
        ("%%gpumem --lines -f e.nope", "-f e.nope: "),
        ("%%gpumem --lines -f len", "-f len is no Python function"),
        (
            "%%gpumem --lines -f M",
            "-f M is a class; name one of its functions: M.forward, M.__call__, M.__init__",
        ),
        (
            "%%gpumem --lines -f Here",
            "-f Here is a class; name one of its functions: Here.forward, Here.__call__, Here.more",
        ),
        ("%%gpumem --lines -f a", "-f a is no Python function: A; name A.__call__"),
        (
            "%%gpumem --lines -f torch.no_grad",
            "-f torch.no_grad is a class; name one of its functions: torch.no_grad.__init__, ",
        ),
        ("%%gpumem --lines -f int", "-f int is a class without Python functions"),
        ("%%gpumem -f e", "-f names a function for --lines"),
    ],
)
def test_bad_functions_are_one_line(lines: Any, run_cell: Any, magic: str, said: str) -> None:
    run_cell("class M(torch.nn.Module):\n    def forward(self, x):\n        return x")
    run_cell("class A:\n    def __call__(self): pass\na = A()")
    functions = ("__call__", "forward", "more")
    here = "\n".join(["class Here:", *(f"    def {each}(self): pass" for each in functions)])
    ran = run_cell(f"{magic}\nx = 1\n{here}", raising=False)
    assert type(ran.error).__name__ == "UsageError"
    assert said in str(ran.error)
    assert "\n" not in str(ran.error)


# --- other trace functions ----------------------------------------------------------------------


class Tracer:
    """A trace function like a coverage tool's: it notes lines; perhaps it sets itself again."""

    def __init__(self, again: bool = False) -> None:
        self.lines: list[int] = []
        self._again = again

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self._again and event == "call":
            sys.settrace(self)
        if event == "line" and frame.f_code.co_name == "<module>":
            self.lines.append(frame.f_lineno)
        return self


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("failing", [False, True])
def test_a_trace_function_goes_on_and_is_put_back(lines: Any, again: bool, failing: bool) -> None:
    theirs, before = Tracer(again), sys.gettrace()
    sys.settrace(theirs)
    try:
        report = lines("a = e(1)\nb = e(2)" + "\nraise KeyError" * failing, raising=False)
        kept = sys.gettrace()
    finally:
        sys.settrace(before)
    assert kept is theirs
    assert {2, 3} <= set(theirs.lines)
    assert in_mib(report) == {2: (1, 1, 1), 3: (2, 2, 2)}
    assert report.notes == ()


def test_a_trace_function_that_wants_no_lines(lines: Any) -> None:
    """As the one of `coverage` in Python for files that are not its concern."""
    before, seen = sys.gettrace(), []

    def theirs(frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_lines = False
        if frame.f_code.co_name == "<module>":
            seen.append(event)
        return theirs

    sys.settrace(theirs)
    try:
        report = lines("a = e(1)\nb = e(2)")
        kept = sys.gettrace()
    finally:
        sys.settrace(before)
    assert kept is theirs
    assert {"call", "return"} == set(seen)
    assert in_mib(report) == {2: (1, 1, 1), 3: (2, 2, 2)}


def test_a_debugger_that_wants_no_more(lines: Any) -> None:
    """As `bdb` without breakpoints does after "continue": it takes its trace function away."""
    before = sys.gettrace()

    class Debugger(bdb.Bdb):
        stopped = 0

        def user_line(self, frame: FrameType) -> None:
            self.stopped += 1
            self.set_continue()

    debugger = Debugger()
    debugger.reset()
    sys.settrace(debugger.trace_dispatch)
    try:
        report = lines("a = e(1)\nb = e(2)")
        left = sys.gettrace()
    finally:
        sys.settrace(before)
    assert debugger.stopped == 1
    assert left is None
    assert in_mib(report) == {2: (1, 1, 1), 3: (2, 2, 2)}


def test_a_trace_function_set_by_the_cell_stays_and_lines_are_said_to_be_missing(
    lines: Any, ip: Any
) -> None:
    before, theirs = sys.gettrace(), Tracer()
    ip.user_ns["theirs"] = theirs
    try:
        report = lines("import sys\na = e(1)\nsys.settrace(theirs)\nb = e(2)")
        left = sys.gettrace()
    finally:
        sys.settrace(before)
    assert left is theirs
    missing = "the trace function was removed or replaced while the cell ran: lines are missing"
    # sys.monitoring, of Python 3.12 on, has nothing to do with trace functions.
    assert report.notes == (() if hasattr(sys, "monitoring") else (missing,))
    assert report.cell.devices[0].allocated == 3 * MIB


def test_an_error_of_ours_does_not_reach_the_cell(
    lines: Any, run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpumagic.cells.line_tracer import LineTracer

    def broken(self: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(LineTracer, "_read", broken)
    report = lines("a = e(1)\nb = 6 * 7")
    assert run_cell("b").value == 42
    assert report.notes[0] == "lines are missing after an error (RuntimeError: ours)"
    assert report.cell.devices[0].allocated == MIB


# --- lines as they are written ---


# IPython says so of every cell with such a separator.
@pytest.mark.filterwarnings("ignore:`make_tokens_by_line` received a list of lines")
@pytest.mark.parametrize(
    ("cell", "line", "text"),
    [
        ("\n\nx = e(4)\ny = 0", 4, "x = e(4)"),
        ("!true \\\n  b\nx = e(4)\ny = 0", 4, "x = e(4)"),
        ("\n%time 1 + \\\n  1\n\nx = e(4)", 6, "x = e(4)"),
        ("s = 'a\u2028b'\nx = e(4)", 3, "x = e(4)"),
        ("    s = 1\n\n    x = e(4)", 4, "    x = e(4)"),
        ('s = """\n\n%not a magic\n"""\nx = e(4)', 6, "x = e(4)"),
    ],
    ids=["blank", "continued", "both", "separator", "indented", "in-a-string"],
)
def test_figures_stand_beside_the_line_that_is_written_there(
    lines: Any, run_cell: Any, cell: str, line: int, text: str
) -> None:
    report = lines(cell)
    source = report.sources[0]
    assert in_mib(report) == {line: (4, 4, 4)}
    assert source.lines[line - source.first] == text
    error = run_cell(f"%%gpumem -q\n{cell.replace('e(4)', '1 / 0')}", raising=False).error
    last = traceback.extract_tb(error.__traceback__)[-1]
    assert (last.lineno, last.line) == (line, text.replace("e(4)", "1 / 0").strip())


AWAITS = """
import asyncio
async def f():
    a = e(40)
    await asyncio.sleep(0)
    b = e(8)
    return b
def g():
    x = [e(40), (yield 1), e(8)]
    yield 2
"""


def test_the_peak_of_a_line_that_awaits_or_yields(lines: Any, run_cell: Any) -> None:
    run_cell(AWAITS)
    assert in_mib(lines("r = await f()\nz = e(2)")) == {2: (8, 48, 8), 3: (2, 2, 2)}
    run_cell("del r, z")
    report = lines("it = g()\nnext(it)\nnext(it)\ndel it", "-f g")
    (found,) = [m for m in report.sources[1].devices[0].values() if m.peak > 8 * MIB]
    assert found.peak == 48 * MIB


def test_ctrl_c_in_a_python_loop(
    lines: Any, run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    restart, readings = LEDGER.restart, 0

    def interrupting(scope: Any) -> Any:
        nonlocal readings
        readings += 1
        if readings == 50:
            signal.raise_signal(signal.SIGINT)
        return restart(scope)

    monkeypatch.setattr(LEDGER, "restart", interrupting)
    ran = run_cell("%%gpumem --lines -q\nwhile True:\n    x = 1", raising=False)
    assert isinstance(ran.error, KeyboardInterrupt)
    assert not names_our_files(ran.stdout + ran.stderr)
    readings = 0
    report = lines("try:\n    while True:\n        x = 1\nexcept KeyboardInterrupt:\n    a = e(3)")
    assert in_mib(report) == {6: (3, 3, 3)}
    assert report.notes == ()


def test_a_process_that_the_cell_forks_reads_no_counter(
    lines: Any, run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    restart, reader, writer = LEDGER.restart, *os.pipe()

    def restarted(scope: Any) -> Any:
        os.write(writer, b"%d " % os.getpid())
        return restart(scope)

    monkeypatch.setattr(LEDGER, "restart", restarted)
    run_cell("def work():\n    x = 1\n    y = 2")
    report = lines(
        "import multiprocessing, warnings\n"
        "with warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n"
        "    child = multiprocessing.get_context('fork').Process(target=work)\n    child.start()\n"
        "child.join()\na = e(3)",
        "-f work",
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert set(pipe.read().split()) == {b"%d" % os.getpid()}
    assert in_mib(report) == {8: (3, 3, 3)}
    assert not report.sources[1].ran


def test_code_without_a_source(lines: Any, run_cell: Any) -> None:
    run_cell("made = {'e': e}\nexec('def f():\\n    return e(2)\\n', made)\nf = made['f']")
    report = lines("x = f()\nexec('y = e(3)')", "-f f")
    assert in_mib(report) == {2: (2, 2, 2), 3: (3, 3, 3)}
    assert [m.change for m in report.sources[1].devices[0].values()] == [2 * MIB]


def test_ten_thousand_lines(lines: Any) -> None:
    report = lines("\n".join(["x = 1"] * 10_000 + ["a = e(2)"]))
    assert in_mib(report) == {10_002: (2, 2, 2)}
    assert len(str(report).splitlines()) < 40


# --- the allocator's history ---------------------------------------------------------------------

RECORD = "torch.cuda.memory._record_memory_history(max_entries=1000)"


@pytest.fixture
def events(torch: ModuleType) -> Iterator[Callable[[], int]]:
    """How many events the allocator's history has; none, and not recorded, afterwards."""
    yield lambda: sum(len(trace) for trace in torch.cuda.memory._snapshot()["device_traces"])
    torch.cuda.memory._record_memory_history(enabled=None)


@pytest.mark.parametrize("magic", ["", "%%gpumem -q --lines\n"])
def test_a_recording_that_the_cell_begins_goes_on(
    run_cell: Any, torch: ModuleType, lines: Any, events: Callable[[], int], magic: str
) -> None:
    run_cell(f"{magic}a = e(1)\n{RECORD}\nb = e(2)")
    assert torch._C._cuda_isHistoryEnabled()
    before = events()
    run_cell("c = e(3)")
    assert before in (1, 2), "none of what came before it began"
    assert events() > before
    run_cell("del a, b, c")


def test_what_stayed_is_not_known_then(
    lines: Any, torch: ModuleType, events: Callable[[], int]
) -> None:
    report = lines(f"a = e(1)\n{RECORD}\nb = e(2)")
    assert [line.stayed for line in report.sources[0].devices[0].values()] == [None, None]
    assert "a recording of the allocator's history was begun or ended" in report.notes[0]


def test_the_recording_of_gpumem_begins_in_such_a_cell_too(
    run_cell: Any, lines: Any, torch: ModuleType, events: Callable[[], int]
) -> None:
    ran = run_cell("%%gpumem --lines\n%gpumem record on\na = e(1)")
    assert "Recording begins." in ran.text + ran.stdout
    assert run_cell("%gpumem record -o -q").value.own
    run_cell("%gpumem record off -q\ndel a")
    assert not torch._C._cuda_isHistoryEnabled()


def test_what_stayed_is_right_where_the_cell_ends_the_tracing(lines: Any) -> None:
    before = sys.gettrace()
    try:
        report = lines("import sys\na = e(1)\nsys.settrace(None)\nb = e(2)\nc = e(3)")
    finally:
        sys.settrace(before)
    traced = report.sources[0].devices[0]
    later = [(5, 2 * MIB), (6, 3 * MIB)] if hasattr(sys, "monitoring") else []
    assert [(line, found.stayed) for line, found in traced.items()] == [(3, MIB), *later]


@pytest.mark.parametrize("function", ["snapshot", "record_history"])
def test_an_interrupt_of_ours_leaves_nothing_behind(
    run_cell: Any, lines: Any, torch: ModuleType, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """While the log is begun, or read after the cell."""

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    scopes, own = len(LEDGER._scopes), torch._C._cuda_record_memory_history
    trace = sys.gettrace()
    monkeypatch.setattr(f"gpumagic.cuda.torch_cuda.{function}", interrupted)
    ran = run_cell("%%gpumem -q --lines\na = e(1)", raising=False)
    assert isinstance(ran.error, KeyboardInterrupt)
    monkeypatch.undo()
    assert len(LEDGER._scopes) == scopes
    assert torch._C._cuda_record_memory_history is own
    assert not torch._C._cuda_isHistoryEnabled()
    assert sys.gettrace() == trace
    run_cell("a = None")


# --- the whole, against a model ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_random_cell_is_exact(lines: Any, torch: ModuleType, seed: int) -> None:
    """Every line's figures against those read by the cell itself; the sum is the cell's."""
    rng = random.Random(seed)
    source, live = [], 0
    for i in range(25):
        if live and rng.random() < 0.4:
            source.append(f"live.pop({rng.randrange(live)});")
            live -= 1
        else:
            source.append(f"live.append(e({rng.randrange(1, 20)}));")
            live += 1
        if rng.random() < 0.3:
            source[-1] += f"t = e({rng.randrange(1, 40)}); del t;"
        source[-1] += f"now[{i + 3}] = torch.cuda.memory_allocated()"
    report = lines("live, now = [], {2: torch.cuda.memory_allocated()}\n" + "\n".join(source))
    now = lines.__closure__[0].cell_contents.user_ns["now"]
    found = report.sources[0].devices[0]
    for number in range(3, 28):
        change = now[number] - now[number - 1]
        assert found.get(number, LineMemory()).change == change
    assert sum(line.change for line in found.values()) == report.cell.devices[0].allocated
    assert sum(line.stayed or 0 for line in found.values()) == report.cell.devices[0].allocated
    assert report.elsewhere == {}


def test_the_users_counters_are_what_they_would_have_been(
    torch: ModuleType, ip: Any, run_cell: Any
) -> None:
    alone, _ = program(torch, 1, lambda aside: None)
    del _
    clear(torch)
    ip.user_ns.update(program=program, torch=torch)
    run_cell("%%gpumem --lines -q -f program\nseen, held = program(torch, 1, lambda aside: None)")
    beside = ip.user_ns["seen"]
    beside[-1] = readings(torch)
    for without, within in zip(alone, beside, strict=True):
        assert without.keys() == within.keys()
        for key in without:
            assert without[key] == within[key], key
    del ip.user_ns["held"]


# --- what stayed --------------------------------------------------------------------------------


def test_a_history_that_is_recorded_already_goes_on(
    with_stacks: None, lines: Any, torch: ModuleType
) -> None:
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1000)
    try:
        report = lines("a = e(1)\nb = e(2); del b")
        assert torch._C._cuda_isHistoryEnabled()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert in_mib(report) == {2: (1, 1, 1), 3: (0, 2, 0)}


def test_a_history_too_short_gives_a_dash(with_stacks: None, lines: Any, torch: ModuleType) -> None:
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=4)
    try:
        report = lines("for i in range(9): a = e(1)")
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert in_mib(report) == {2: (1, 2, -1)}
    assert "–" in str(report)


def test_the_event_log_is_stopped_again(lines: Any, torch: ModuleType) -> None:
    lines("a = e(1)")
    assert not torch._C._cuda_isHistoryEnabled()


# --- on the screen -----------------------------------------------------------------------------


def test_on_the_screen(lines: Any, run_cell: Any) -> None:
    filler = "\n".join(f"n{i} = {i}" for i in range(12))
    ran = run_cell(f"%%gpumem --lines\nif True:\n    a = e(2)\n{filler}\nb = e(1); c = 0")
    assert ran.text.splitlines()[:2] + ran.text.splitlines()[3:6] == [
        "cell on cuda:0",
        "Line  Hits     Change                Peak  Retained  Source",
        "   2     1                                           if True:",
        "   3     1  +2.00 MiB  ████████ +2.00 MiB  2.00 MiB      a = e(2)",
        "   4     1                                           n0 = 0",
    ]

    assert "⋯" in ran.text
    assert "n6 = 6" not in ran.text
    assert "white-space:pre" in ran.html


def test_how_often_a_line_ran(lines: Any) -> None:
    """Its change is the sum of its runs, its peak that of one."""
    source = "kept = []\nfor i in range(3):\n    kept.append(e(1))\nb = [e(1) for i in range(4)]"
    cell = lines(source).sources[0]
    assert cell.runs[4] == 3
    assert cell.runs[5] == 1  # a comprehension is one statement
    assert cell.devices[0][4].change == 3 * MIB
    assert cell.devices[0][4].peak == MIB


def test_as_a_frame(lines: Any) -> None:
    pytest.importorskip("pandas")
    frame = lines("a = e(2)").to_pandas()
    assert frame.loc[("cell", 2, 0), "change"] == 2 * MIB
    assert frame.loc[("cell", 2, 0), "text"] == "a = e(2)"
