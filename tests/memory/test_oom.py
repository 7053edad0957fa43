"""Out of memory, explained below the traceback: the text, its time, and its side effects."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpumagic.memory import oom
from gpumagic.memory.oom import explain, find
from gpumagic.results.memory.out_of_memory import OutOfMemory
from tests.support.allocator import says_what_is_saved

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


@pytest.fixture
def gives(torch: ModuleType) -> str:
    """torch 2.6 does not say what autograd has saved: more may come back."""
    return "gives" if says_what_is_saved(torch) else "gives at least"


def explained(ip: Any) -> OutOfMemory:
    found = explain(sys.last_value, ip)
    assert isinstance(found, OutOfMemory)
    return found


def test_what_is_said(torch: ModuleType, cells: Any, ip: Any, gives: str) -> None:
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
    assert "hidden (In[1] line 6 in forward)" in text
    assert "44.0 GiB allocated · " in text
    assert f"%gpumem free {gives} 20.0 GiB: what the failed functions and the outputs hold" in text
    assert "<table" in ran.html
    found = explained(ip)
    assert (found.device, found.requested, found.allocated) == (0, 70 * GIB, 44 * GIB)
    assert found.recoverable == 20 * GIB
    assert found.unattributed == (0 if says_what_is_saved(torch) else None)
    assert [h.name for h in found.holders] == ["hidden (In[1] line 6 in forward)", "b", "a"]
    assert found.total is not None
    assert found.total - GIB < found.allocated + (found.free or 0) < found.total
    assert number == ip.execution_count - 1


def test_what_two_failed_functions_hold_is_the_inner_ones(cells: Any, ip: Any) -> None:
    cells("def inner(held):\n    new(70)\ndef outer():\n    held = new(20)\n    inner(held)")
    cells("outer()", raising=False)
    (holder,) = explained(ip).holders
    assert holder.name == "held (In[2] line 2 in inner)"
    assert holder.also == ("held (In[2] line 5 in outer)",)


def test_what_values_without_a_name_held_is_said(cells: Any) -> None:
    ran = cells("[new(10) for _ in range(10)]", raising=False)
    then, now = ran.text.splitlines()[2:4]
    assert then.startswith("When it failed: ")
    assert " · 70.0 GiB allocated · 0 B cached · " in then
    assert now == "Now: 0 B allocated; 70.0 GiB went with values that had no name"


CYCLE = "class Node: pass\nn = Node(); n.held = new({}); n.me = n; del n"


def test_garbage_that_would_be_enough(torch: ModuleType, cells: Any, ip: Any, gives: str) -> None:
    gc.disable()
    try:
        cells(CYCLE.format(42))
        text = cells("y = new(40)", raising=False).text
        assert "garbage in cycles" in text
        assert f"%gpumem free {gives} 42.0 GiB: garbage in cycles" in text
        assert "%debug" not in text
        assert "When it failed" not in text, "it is as it was"
        cells("%gpumem free")
        assert torch.cuda.memory_allocated() == 0
        cells("y = new(40)")
        cells("del y")
        # It is not looked for where it would not help.
        cells(CYCLE.format(1))
        assert "garbage" not in cells("y = new(90)", raising=False).text
    finally:
        gc.enable()


def test_the_garbage_of_the_failure_before_is_counted(
    torch: ModuleType, cells: Any, gives: str
) -> None:
    """The cell that failed is run again with a little less."""
    gc.disable()
    try:
        cells("def run(wanted):\n    bad = new(30)\n    return new(wanted)")
        cells("run(60)", raising=False)
        text = cells("run(55)", raising=False).text
        assert f"%gpumem free {gives} 60.0 GiB: garbage in cycles, and what the failed" in text
        cells("%gpumem free")
        assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()


def test_what_was_not_looked_for_is_not_left_out_without_a_word(cells: Any) -> None:
    gc.disable()
    try:
        cells(f"kept = new(12)\n{CYCLE.format(1)}")
        text = cells("forward(kept)", raising=False).text
    finally:
        gc.enable()
        cells("del kept")
    assert "%gpumem free gives at least 20.0 GiB: what the failed" in text


@pytest.mark.parametrize("magic", ["", "%%gpumem -q\n"])
def test_the_last_model_that_would_be_enough(cells: Any, magic: str, gives: str) -> None:
    """The cell that loads it is run again: two of them do not fit."""
    load = "kept = new(1)\nmodel, config = [new(25), new(25)], 3\nmodel"
    cells(load)
    text = cells(f"{magic}{load}", raising=False).text
    assert (
        f"%gpumem free model {gives} 50.0 GiB: the cell makes it anew beside the last one" in text
    )
    cells("%gpumem free model")
    cells(load)
    for other in ("other = new(70)", "model[0] = new(70)", "model.append(new(70))"):
        assert "%gpumem free model" not in cells(other, raising=False).text
    cells("del model, kept")


def test_fragmentation(cells: Any, ip: Any) -> None:
    # Segments of 2 GiB, in each a small piece that stays.
    cells("whole = [new(2) for _ in range(36)]")
    cells("del whole; pairs = [(new(.1), new(1.85)) for _ in range(36)]")
    cells("kept = [small for small, _ in pairs]; del pairs, _")
    cells("new(20)", raising=False)
    fragmented = explained(ip).fragmented
    assert fragmented is not None
    assert fragmented.endswith("CONF=expandable_segments:True")
    assert f"in pieces that are too small: restart with {fragmented}" in str(explained(ip))
    cells("new(200)", raising=False)
    assert explained(ip).fragmented is None


def test_other_processes(cells: Any, ip: Any, virtual_gpu: Any) -> None:
    virtual_gpu.add_process(0, pid=42424242, memory_bytes=60 * GIB)
    cells("new(30)", raising=False)
    found = explained(ip)
    assert found.others == 60 * GIB
    assert "60.0 GiB other processes" in str(found)
    assert "42424242" not in str(found)


def test_a_limit_of_ones_own(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("torch.cuda.set_per_process_memory_fraction(0.25)")
    cells("new(30)", raising=False)
    found = explained(ip)
    assert found.limit is not None
    assert found.limit < 20 * GIB
    assert "is the limit of this process" in str(found)
    assert "limit off" not in str(found)
    assert found.missing == 30 * GIB + found.rounded_by + found.reserved - found.limit


def test_a_limit_that_gpumem_lifts(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("%gpumem limit 1GiB -q")
    cells("new(30)", raising=False)
    assert "'%gpumem limit off' lifts the limit of this process" in str(explained(ip))
    cells("%gpumem limit off -q")


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


def test_a_cell_that_runs_the_failing_one_is_not_explained_again(cells: Any, ip: Any) -> None:
    run = "get_ipython().run_cell"
    shown = cells(f"{run}('forward(1)'); {run}('1');", raising=False).text
    assert shown.count("Out of memory on cuda:0") == 1


def test_a_cycle_of_exceptions(torch: ModuleType) -> None:
    a, b = ValueError(), KeyError()
    a.__cause__, b.__context__ = b, a
    assert find(a) is None
    b.__cause__ = error = torch.OutOfMemoryError("CUDA out of memory.")
    assert find(a) is error


def test_off_and_on(cells: Any, ip: Any) -> None:
    cells("%config GpuMagic.explain_oom = False")
    assert cells("forward(1)", raising=False).displays == []
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


@pytest.mark.usefixtures("all_objects")
def test_it_leaves_no_trace(torch: ModuleType, cells: Any, ip: Any) -> None:
    """The counters stay, and no frame is kept."""
    cells("forward(1)", raising=False)
    before = {i: torch.cuda.memory_stats(i) for i in (0, 1)}
    assert "Out of memory" in str(explained(ip))
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


def test_no_explanation_where_the_user_has_replaced_the_exception(cells: Any) -> None:
    source = "try:\n    forward(None)\nexcept Exception as error:\n    raise ValueError('mine')"
    assert "Out of memory" in cells(source, raising=False).text
    assert cells(f"{source} from None", raising=False).text == ""


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
    # torch does not count this one.
    assert "Out of memory" in cells("new(2**32)", raising=False).text


def test_one_large_variable_does_not_hide_the_others(
    torch: ModuleType, cells: Any, ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the time ends; and what is unknown is not told."""
    monkeypatch.setattr("gpumagic.memory.objects.walk.LIMIT", 40_000)
    cells("first = {}; first.update((i, (i, [first])) for i in range(60_000))")
    cells("a = new(8); listed = [1, new(4)]")
    cells("forward(a)", raising=False)
    found = explained(ip)
    assert {holder.name: holder.bytes for holder in found.holders} == {
        "hidden (In[1] line 6 in forward)": 20 * GIB,
        "a": 8 * GIB,
        "listed": 4 * GIB,
    }
    assert found.unattributed is None
    assert "there are too many objects to visit them all: more may hold memory" in str(found)
    cells("del first")


def test_nvml_is_not_started_for_the_report(cells: Any, ip: Any, virtual_gpu: Any) -> None:
    assert "Out of memory on cuda:0 (NVIDIA" in cells("new(100)", raising=False).text
    assert virtual_gpu.calls("nvmlInitWithFlags") == 0
    outside = explained(ip).outside
    assert outside is not None
    assert 2**27 < outside < GIB  # the context


def test_below_run(cells: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython itself shows what a script raises, and the cell succeeds; once, not again."""
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("import torch\nx = torch.empty(2**40, device='cuda')\n")
    assert "Out of memory on cuda:0" in cells("%run script.py").text
    assert "Out of memory" not in cells("1").text


def test_what_is_short_is_no_rounded_figure(cells: Any) -> None:
    """torch's message says 1.01 GiB of 1,029 MiB, which is 10 MiB above 1 GiB."""
    cells("%gpumem limit 1GiB")
    said = cells("x = torch.empty(1029 * 2**20, dtype=torch.uint8, device='cuda')", raising=False)
    cells("%gpumem limit off")
    found = re.search(r"at least ([\d.]+) MiB short", said.text)
    assert found is not None
    assert 4 < float(found[1]) <= 6
