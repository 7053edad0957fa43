"""Out of memory, explained below the traceback: the text, its time, and its side effects."""

from __future__ import annotations

import gc
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from gpumagic.magics.extension import of
from gpumagic.memory import oom, start_counters
from gpumagic.memory.oom import WALK, explain, find
from gpumagic.results import Holders, OutOfMemory
from gpumagic.results.base import as_text
from tests.support import forks

GIB = 2**30

SETUP = """
def new(gib, device=0):
    return torch.empty(int(gib * 2**30), dtype=torch.uint8, device=f"cuda:{device}")

def forward(x, wanted=70):
    hidden = new(20)
    return new(wanted)
"""


@pytest.fixture
def cells(
    torch: ModuleType, ip: Any, run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    monkeypatch.setattr(oom, "WALK", 60.0)  # as long as a slow machine needs
    ip.user_ns["torch"] = torch
    run_cell(SETUP)
    yield run_cell
    torch.cuda.set_per_process_memory_fraction(1.0)
    run_cell("%gpumem free -q")


def explained(ip: Any, begun: Any = None) -> OutOfMemory:
    found = explain(sys.last_value, ip, begun)
    assert found is not None
    return found


def test_what_is_said(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("a = new(8); b = new(16)")
    number = ip.execution_count
    ran = cells("forward(a)", raising=False)
    assert isinstance(ran.error, torch.OutOfMemoryError)
    text = ran.text
    assert "Out of memory on cuda:0" in text
    assert "In[1] line 2 in new tried to allocate 70.0 GiB" in text
    assert (
        'return torch.empty(int(gib * 2**30), dtype=torch.uint8, device=f"cuda:{device}")' in text
    )
    assert "Fragmentation is not the cause" in text
    assert "hidden (In[1] line 6 in forward)" in text
    assert "1. %gpumem free gives 20.0 GiB, not enough" in text
    assert "<table" in ran.html
    found = explained(ip)
    assert (found.device, found.requested, found.allocated) == (0, 70 * GIB, 44 * GIB)
    assert (found.recoverable, found.unattributed) == (20 * GIB, 0)
    assert [h.name for h in found.holders] == ["hidden (In[1] line 6 in forward)", "b", "a"]
    assert found.total is not None
    assert found.total - GIB < found.allocated + (found.free or 0) < found.total
    assert found.remedies[0].what == "%gpumem free"
    assert number == ip.execution_count - 1


def test_it_names_and_counts_as_vars_does(torch: ModuleType, cells: Any, ip: Any) -> None:
    """Modules by parameters and gradients, also where an output's graph leads to them."""
    cells(
        "model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(9)]).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "x = torch.ones(4096, 4096, device='cuda')\n"
        "model(x).sum().backward(); optimizer.step(); y = model(x)"
    )
    cells("filler = [new(30), new(30)]")
    shown = cells("new(40)", raising=False).text
    found = explained(ip)
    device = cells("%gpumem vars -o -q").value.devices[0]
    assert found.complete == hasattr(torch._C._autograd.SavedTensor, "data")
    # Of equal size (x and y, where it is not known what a graph keeps) each may be the first.
    sizes, counted = zip(
        *(
            ([h.bytes for h in each], {h.name: (h.kind, h.bytes, h.parts) for h in each})
            for each in (found.holders, device.holders[: len(found.holders)])
        ),
        strict=True,
    )
    assert sizes[0] == sizes[1]
    assert counted[0] == counted[1]
    assert {*device["model"].parts} == {"parameters", "gradients"}
    table = as_text(Holders({0: device})).splitlines()
    rows = [re.sub(" +", " ", line) for line in shown.splitlines()]
    for line in table[2:]:
        if line.startswith(("└", *(holder.name for holder in found.holders))):
            name, size = re.match(r"(.*?)  +[^0-9]*([0-9.]+ [KMG]iB)", line).groups()
            assert any(row.startswith(name) and size in row for row in rows), line
    cells("%gpumem free model optimizer x y filler -q")


def test_the_smallest_variable_that_is_enough(cells: Any, ip: Any) -> None:
    cells("a = new(8); b = new(16); c = new(30)")
    cells("new(32)", raising=False)
    by_what = {remedy.what: remedy for remedy in explained(ip).remedies}
    assert by_what["%gpumem free a"].enough
    assert by_what["%gpumem free a"].gives == 8 * GIB
    assert "%gpumem free b" not in by_what
    cells("%gpumem free a")
    assert cells("new(32).shape").value == (32 * GIB,)


def test_fragmentation(cells: Any, ip: Any) -> None:
    # Segments of 2 GiB, in each a small piece that stays.
    cells("whole = [new(2) for _ in range(36)]")
    cells("del whole; pairs = [(new(.1), new(1.85)) for _ in range(36)]")
    cells("kept = [small for small, _ in pairs]; del pairs, _")
    cells("new(20)", raising=False)
    found = explained(ip)
    assert found.fragmented
    assert found.fragmentation == "too-late"
    assert found.largest_free is not None
    assert found.largest_free < 20 * GIB < (found.unused or 0)
    (remedy,) = [r for r in found.remedies if "expandable_segments:True" in r.what]
    assert "too late for this kernel" in remedy.why


def test_other_processes(cells: Any, ip: Any, virtual_gpu: Any) -> None:
    virtual_gpu.add_process(0, pid=42424242, memory_bytes=60 * GIB)
    cells("new(30)", raising=False)
    found = explained(ip)
    assert found.others == 60 * GIB
    assert [process.pid for process in found.processes] == [42424242]
    # Only processes that are known to be the user's own are offered to be ended.
    assert not [r for r in found.remedies if "42424242" in r.what + r.why]
    assert "42424242" not in str(found)
    (remedy,) = [r for r in found.remedies if "others hold" in r.why]
    assert remedy.what in {f"use cuda:{ordinal}" for ordinal in (1, 2, 3)}
    assert remedy.enough


def test_a_limit_of_ones_own(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("torch.cuda.set_per_process_memory_fraction(0.25)")
    cells("new(30)", raising=False)
    found = explained(ip)
    assert found.limit is not None
    assert found.limit < 20 * GIB
    (remedy,) = [r for r in found.remedies if "set_per_process_memory_fraction" in r.what]
    assert remedy.enough


def test_a_process_that_is_over_the_limit_already(torch: ModuleType, cells: Any, ip: Any) -> None:
    """What is freed counts from where it is below the limit again."""
    cells("w1 = new(1); w2 = new(1.25); x = new(2)")
    cells("%gpumem limit -q 3GiB")
    cells("y = new(20 / 1024)", raising=False)
    found = explained(ip)
    assert found.limit is not None
    assert found.missing == 20 * 2**20 + found.reserved - found.limit
    (off,) = [r for r in found.remedies if r.what == "%gpumem limit off"]
    assert off.enough
    (free,) = [r for r in found.remedies if r.what.startswith("%gpumem free ")]
    assert (free.what, free.enough) == ("%gpumem free x", True)
    cells("x = None; x = [new(1), new(1)]; w3 = x[:]")
    cells("y = new(20 / 1024)", raising=False)
    frees = [r for r in explained(ip).remedies if r.what.startswith("%gpumem free ")]
    assert [r.enough for r in frees] == [False]
    cells(f"{frees[0].what}")
    ran = cells("y = new(20 / 1024)", raising=False)
    assert isinstance(ran.error, torch.OutOfMemoryError)
    cells("%gpumem limit -q off")


def test_a_fraction_of_the_users_that_is_smaller_than_the_limit(
    torch: ModuleType, cells: Any, ip: Any
) -> None:
    if not hasattr(torch._C, "_cuda_getMemoryFraction"):
        pytest.skip("this torch does not tell the fraction")
    cells("torch.cuda.set_per_process_memory_fraction(0.01)")
    cells("%gpumem limit -q 16GiB")
    cells("new(2)", raising=False)
    whats = [remedy.what for remedy in explained(ip).remedies]
    assert "%gpumem limit off" not in whats
    assert "torch.cuda.set_per_process_memory_fraction(1.0, 0)" in whats
    cells("%gpumem limit -q off")


def test_the_device_that_ran_out(cells: Any, ip: Any) -> None:
    cells("here = new(1); there = new(60, 1)")
    cells("new(40, 1)", raising=False)
    found = explained(ip)
    assert found.device == 1
    assert [holder.name for holder in found.holders] == ["there"]


NESTED = {
    "cause": "try:\n    forward(1)\nexcept RuntimeError as e:\n    raise ValueError from e",
    "context": "try:\n    forward(1)\nexcept RuntimeError:\n    1 / 0",
    "magic": "%%gpumem -q\nforward(1)",
}
if sys.version_info >= (3, 11):
    NESTED["group"] = (
        "try:\n    forward(1)\n"
        "except RuntimeError as e:\n    raise ExceptionGroup('x', [KeyError(), e])"
    )


@pytest.mark.parametrize("source", NESTED.values(), ids=NESTED)
def test_nested_in_another_exception(cells: Any, source: str) -> None:
    ran = cells(source, raising=False)
    assert "Out of memory on cuda:0" in ran.text
    assert "hidden (In[1] line 6 in forward)" in ran.text


def test_a_cycle_of_exceptions(torch: ModuleType) -> None:
    a, b = ValueError(), KeyError()
    a.__cause__, b.__context__ = b, a
    assert find(a) is None
    b.__cause__ = error = torch.OutOfMemoryError("CUDA out of memory.")
    assert find(a) is error


def test_other_exceptions_and_caught_ones_are_not_explained(cells: Any) -> None:
    assert "Out of memory" not in cells("1 / 0", raising=False).text
    ran = cells("try:\n    forward(1)\nexcept RuntimeError:\n    pass")
    assert ran.displays == []


def test_off_and_on(cells: Any, ip: Any) -> None:
    assert "not explained" in cells("%gpumem explain off").stdout
    assert cells("forward(1)", raising=False).displays == []
    assert cells("%gpumem explain -o -q").value is False
    cells("%config GpuMagic.explain_oom = True")
    assert "Out of memory" in cells("forward(1)", raising=False).text
    cells("%gpumem free -q")
    ip.extension_manager.unload_extension("gpumagic")
    assert cells("forward(1)", raising=False).displays == []
    ip.extension_manager.load_extension("gpumagic")


def test_a_message_without_figures(torch: ModuleType, cells: Any) -> None:
    source = "try:\n    new(1 << 20)\nexcept RuntimeError:\n    pass\n"
    ran = cells(f"{source}raise torch.OutOfMemoryError('who knows')", raising=False)
    assert ran.text.startswith("✗ Out of memory on the GPU: In[2] line 5")


def test_a_failure_of_ours_is_one_line(
    cells: Any, monkeypatch: pytest.MonkeyPatch, torch: ModuleType
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("NVML went away")

    monkeypatch.setattr("gpumagic.memory.oom._report", broken)
    ran = cells("forward(1)", raising=False)
    assert isinstance(ran.error, torch.OutOfMemoryError)
    assert ran.stderr == "gpumagic: no explanation (RuntimeError: NVML went away)\n"


@pytest.mark.usefixtures("all_objects")
def test_in_time_and_without_a_trace(
    torch: ModuleType, cells: Any, ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with very many objects; the counters stay, and no frame is kept."""
    monkeypatch.setattr(oom, "WALK", WALK)
    cells("many = [[torch.empty(1, device='cuda')] for _ in range(20_000)]")
    cells("objects = [{'a': [i]} for i in range(300_000)]")
    cells("forward(1)", raising=False)
    before = {i: torch.cuda.memory_stats(i) for i in (0, 1)}
    gc.collect()
    started = time.process_time()
    gc.collect()  # looks at the same objects
    once = time.process_time() - started
    times = []
    for _ in range(3):
        started = time.process_time()
        found = explained(ip)
        text = str(found)
        times.append(time.process_time() - started)
    # CPU time, against that of the same machine: walking over the objects is ended after a while.
    assert min(times) < WALK + 3 * once, (times, once)
    assert "Out of memory" in text
    assert {i: torch.cuda.memory_stats(i) for i in (0, 1)} == before
    gc.disable()
    try:
        frame = sys.last_traceback
        while frame.tb_next is not None:
            frame = frame.tb_next
        references = sys.getrefcount(frame.tb_frame)
        explained(ip)
        after = sys.getrefcount(frame.tb_frame)
    finally:
        gc.enable()
        del frame
    assert after == references
    cells("del many, objects")


SESSION = """
import contextlib, io
import tests.support.shells as shells

config = shells.Config()
config.HistoryManager.enabled = False
config.InteractiveShell.colors = shells.PLAIN
ip = shells.InteractiveShell.instance(config=config)
loaded = sys.argv[1] == "with"
if loaded:
    ip.run_line_magic("load_ext", "gpumagic")
cells = [
    "import torch",
    "x = torch.empty(2**20, device='cuda'); x.shape",
    "def f():\\n    h = torch.empty(2**22, device='cuda')\\n    torch.empty(2**50, device='cuda')",
    "%gpumem vars",
    "f()",
    "%gpumem vars --gc",
    "y = [x[3:], torch.empty(9, device='cuda')]",
    "%gpumem free --dry-run",
]
for cell in cells:
    if loaded or not cell.startswith("%"):
        with contextlib.redirect_stdout(io.StringIO()):
            ip.run_cell(cell, store_history=True)
print(json.dumps(ip.user_ns["torch"].cuda.memory_stats(0)))
"""


def test_the_users_counters_are_as_without_gpumagic(child_environment: Any) -> None:
    """The same session with and without the extension: every counter is equal."""

    def counters(mode: str) -> Any:
        source = "import json, sys\n" + SESSION
        done = forks.run([sys.executable, "-c", source, mode], env=child_environment())
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    without, having = counters("without"), counters("with")
    assert without == having
    assert having["num_ooms"] == 1


KEEPING = {
    "a future": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:
    kept = pool.submit(forward, None)
kept.result()
""",
    "a list": """
kept = []
try:
    forward(None)
except Exception as error:
    kept.append(error)
    raise
""",
}


@pytest.mark.parametrize("case", KEEPING)
def test_a_variable_that_keeps_the_exception(
    torch: ModuleType, cells: Any, ip: Any, case: str
) -> None:
    cells(KEEPING[case], raising=False)
    by_what = {remedy.what: remedy for remedy in explained(ip).remedies}
    assert by_what["%gpumem free kept"].gives == 20 * GIB
    assert "the same cell would need it again" in by_what["%gpumem free kept"].why
    cells("%gpumem free kept")
    assert torch.cuda.memory_allocated() == 0


def test_no_explanation_where_the_user_has_replaced_the_exception(cells: Any) -> None:
    source = "try:\n    forward(None)\nexcept Exception as error:\n    raise ValueError('mine')"
    assert "Out of memory" in cells(source, raising=False).text
    assert cells(f"{source} from None", raising=False).text == ""


def test_memory_that_was_freed_meanwhile_is_the_first_remedy(cells: Any, ip: Any) -> None:
    cells("small = new(1); big = [new(40)]")
    begun = start_counters.read()
    cells("new(40)", raising=False)
    ip.user_ns["big"].clear()
    assert [r.what for r in explained(ip, begun).remedies] == [
        "run the cell again",
        "ask for less at once",
    ]


FAILS_AGAIN = {
    "unwound": "def f():\n    return [new(30) for _ in range(3)]\nf()",
    "caught": "def f():\n    try:\n        x = new(50)\n        new(50)\n"
    "    except RuntimeError as e:\n        del x\n        raise\nf()",
}


@pytest.mark.parametrize("case", FAILS_AGAIN)
def test_freed_memory_of_the_cell_itself_is_no_remedy(cells: Any, ip: Any, case: str) -> None:
    cells("a = new(25)")
    text = cells(f"del a\n{FAILS_AGAIN[case]}", raising=False).text
    assert "Out of memory on cuda:0" in text
    assert "run the cell again" not in text
    text = cells(FAILS_AGAIN[case], raising=False).text
    assert "Out of memory on cuda:0" in text
    assert "run the cell again" not in text
    assert "enough" not in text
    # Nor where it is not known what the cell had itself.
    assert not [remedy for remedy in explained(ip).remedies if remedy.enough]


def test_one_large_variable_does_not_hide_the_others(
    torch: ModuleType, cells: Any, ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in very little time; and what is unknown is called unknown."""
    cells("first = {i: (i, [i]) for i in range(20_000)}; a = new(8); listed = [1, new(4)]; new(2)")
    cells("model = torch.nn.Linear(2**14, 2**14, device='cuda')")
    cells("first[-1] = (0, [0, [new(1)]])")
    cells("def fails(x):\n    weight = model.weight\n    forward(x)")
    monkeypatch.setattr(oom, "WALK", 0.0)
    text = cells("fails(a)", raising=False).text
    assert "not known: the search was incomplete" in text
    assert "garbage" not in text
    assert "not referenced by any variable" not in text
    found = explained(ip)
    held = {holder.name: holder.bytes for holder in found.holders}
    assert held == {
        "hidden (In[1] line 6 in forward)": 20 * GIB,
        "a": 8 * GIB,
        "listed": 4 * GIB,
        "Out[2]": 2 * GIB,
        "model": GIB + 2**16,
    }
    assert (found.complete, found.unattributed) == (False, GIB)
    assert {remedy.enough for remedy in found.remedies} == {None}
    assert "not all objects were visited" in found.remedies[0].why
    monkeypatch.setattr(oom, "WALK", 60.0)
    whole = explained(ip)
    assert (whole.complete, whole.unattributed) == (True, 0)
    (model,) = [holder for holder in whole.holders if holder.name == "model"]
    assert model.parts == {"parameters": GIB + 2**16}
    cells("del first, model")


def test_the_walk_is_limited_by_its_own_cpu_time(
    cells: Any, ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loaded machine any time may pass between two steps."""
    cells("objects = [{'a': [i]} for i in range(2_000)]; a = [[new(8)]]")
    cells("forward(1)", raising=False)
    now = itertools.count(time.perf_counter(), 100)
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: next(now))
        found = explained(ip)
    assert found.complete
    assert found.unattributed == 0


WORKERS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 1.00 GiB is free. Of the allocated memory 10.00 GiB is allocated by PyTorch, and "
    "60.00 GiB is reserved by PyTorch but unallocated."
)


def test_an_error_of_another_process(torch: ModuleType, cells: Any, ip: Any) -> None:
    """What this process holds does not explain it: none of its allocations has failed."""
    for ordinal in range(torch.cuda.device_count()):  # those of other tests have
        torch.cuda.reset_accumulated_memory_stats(ordinal)
    ip.user_ns["error"] = torch.OutOfMemoryError(WORKERS)
    sources = ["a = new(1)\nraise error"]
    if sys.version_info >= (3, 11):
        sources.append("raise ExceptionGroup('g', [error])")
    for source in sources:
        assert cells(source, raising=False).text == (
            "gpumagic: no allocation of this process has failed: the out-of-memory error comes "
            "from another process, a worker perhaps, or was raised by hand."
        )
    assert "Out of memory on cuda:0" in cells("forward(1)", raising=False).text
    text = cells("raise error", raising=False).text
    assert text.startswith("gpumagic: no allocation of this process failed in this cell")
    # The counters may be reset meanwhile.
    source = "torch.cuda.reset_accumulated_memory_stats()\nforward(1)"
    assert "Out of memory on cuda:0" in cells(source, raising=False).text
    # torch does not count this one.
    assert "Out of memory" in cells("new(2**32)", raising=False).text


def test_cells_within_cells(cells: Any, ip: Any) -> None:
    """What the outer one had allocated before the inner one began is its own, too."""
    ip.user_ns["ip"] = ip
    outer = "kept = [new(30)]; ip.run_cell('1')\ndef f():\n    x = new(30); kept.clear(); new(60)"
    text = cells(f"{outer}\nf()", raising=False).text
    assert "Out of memory on cuda:0" in text
    assert "run the cell again" not in text
    assert of(ip).hooks._running == []


def test_no_fragmentation_beside_a_block_that_is_large_enough(cells: Any, ip: Any) -> None:
    cells("whole = [new(2) for _ in range(36)]")
    cells("del whole; pairs = [[new(.1), new(1.85)] for _ in range(36)]")
    cells("for pair in pairs: del pair[1]")
    cells("new(20)", raising=False)
    assert explained(ip).fragmented
    ip.user_ns["pairs"].clear()
    cells("torch.cuda.empty_cache(); x = new(30); del x; del pair")
    found = explained(ip)
    assert (found.largest_free or 0) > 20 * GIB
    assert found.fragmented is None
    assert "Fragmented" not in str(found)
