"""``%gpumem record``, ``cells`` and ``snapshot``: the allocator's history, live memory by cell."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpumagic.results import CellHoldings, HistoryState
from tests.support.allocator import MIB, bytes_on, functions


@pytest.fixture
def recorded(with_stacks: None, torch: ModuleType, ip: Any, run_cell: Any) -> Any:
    """``run_cell`` with ``%gpumem record on``."""
    ip.user_ns["torch"] = torch
    run_cell("%gpumem record on -q")
    return run_cell


def held(run_cell: Any, ordinal: int = 0) -> dict[str, int]:
    """Live MiB by the cells' first lines."""
    found = run_cell("%gpumem cells -o -q").value
    assert isinstance(found, CellHoldings)
    return {h.source: h.bytes // MIB for h in found.devices.get(ordinal, ())}


# --- live memory by cell ----------------------------------------------------------------------


def test_by_cell(recorded: Any, torch: ModuleType) -> None:
    recorded(f"a = {bytes_on(0, 3 * MIB)}\nb = {bytes_on(1, 4 * MIB)}")
    recorded("# the second\nc = [a.clone(), a.clone()]")
    recorded(f"del a\nd = {bytes_on(0, MIB)}")
    ran = recorded("found = %gpumem cells -o")
    found = recorded("found").value
    first, second, third = found.devices[0][0].number, found.devices[0][1], found.devices[1][0]
    assert held(recorded) == {"# the second": 6, "del a": 1}
    assert second.number == first + 1
    assert third.number == first - 1
    assert found.devices[0][0].blocks == 2
    for ordinal in (0, 1):
        total = sum(h.bytes for h in found.devices[ordinal])
        assert total == torch.cuda.memory_allocated(ordinal)
    assert f"[{first}]  # the second" in ran.text
    assert "<table" in ran.html


def test_what_a_function_allocates_is_of_the_cell_that_calls_it(recorded: Any) -> None:
    recorded(f"def make(): return {bytes_on(0, 2 * MIB)}")
    recorded("x = make()")
    assert held(recorded) == {"x = make()": 2}


def test_a_cell_that_is_run_twice(recorded: Any, ip: Any) -> None:
    recorded("kept = []")
    numbers = []
    for _ in range(2):
        numbers.append(ip.execution_count)
        recorded(f"kept.append({bytes_on(0, MIB)})")
    found = recorded("%gpumem cells -o -q").value
    assert sorted(h.number for h in found.devices[0]) == numbers


def test_a_backward_pass_has_no_stack_and_yet_a_cell(recorded: Any) -> None:
    recorded("w = torch.zeros(1024, 1024, device='cuda', requires_grad=True)")
    recorded("(w * 1).sum().backward()")
    assert held(recorded) == {
        "w = torch.zeros(1024, 1024, device='cuda', requires_grad=True)": 4,
        "(w * 1).sum().backward()": 4,
    }


def test_the_running_cell_is_listed(recorded: Any, ip: Any) -> None:
    number = ip.execution_count
    recorded(f"x = {bytes_on(0, MIB)}\nfound = %gpumem cells -o -q")
    (own,) = recorded("found").value.devices[0]
    assert own.number == number
    assert own.bytes == MIB


def test_memory_from_before_the_recording(
    torch: ModuleType, with_stacks: None, ip: Any, run_cell: Any
) -> None:
    ip.user_ns["torch"] = torch
    run_cell(f"x = {bytes_on(0, 5 * MIB)}")
    run_cell("%gpumem record on -q")
    run_cell(f"y = {bytes_on(0, MIB)}")
    found = held(run_cell)
    assert found["before the recording began"] == 5
    assert sum(found.values()) == 6


def test_what_is_older_than_the_events_is_known_by_its_stack(
    with_stacks: None, torch: ModuleType, ip: Any, run_cell: Any
) -> None:
    ip.user_ns["torch"] = torch
    run_cell("%gpumem record on -q --entries 8")
    run_cell(f"# first\nx = {bytes_on(0, 2 * MIB)}")
    run_cell("w = torch.zeros(1024, 1024, device='cuda', requires_grad=True)")
    run_cell("(w * 1).sum().backward()")
    run_cell(f"for i in range(20): {bytes_on(0, MIB)}")
    assert held(run_cell) == {
        "# first": 2,
        "w = torch.zeros(1024, 1024, device='cuda', requires_grad=True)": 4,
        "not known: older than the events that are kept": 4,
    }


def test_as_a_frame(recorded: Any) -> None:
    pytest.importorskip("pandas")
    recorded(f"x = {bytes_on(1, MIB)}")
    frame = recorded("%gpumem cells -o -q").value.to_pandas()
    assert list(frame["bytes"]) == [MIB]


# --- on and off ---------------------------------------------------------------------------------


def test_on_and_off(with_stacks: None, torch: ModuleType, ip: Any, run_cell: Any) -> None:
    ip.user_ns["torch"] = torch
    own = functions(torch)
    before = {name: list(found) for name, found in ip.events.callbacks.items()}
    assert "No history is recorded" in run_cell("%gpumem record").text
    ran = run_cell("%gpumem record on -o --entries 5000")
    assert ran.value == HistoryState(True, True, 5000, "Recording begins.")
    assert torch._C._cuda_isHistoryEnabled()
    assert "already" in run_cell("%gpumem record on").text
    run_cell(f"for i in range(9): {bytes_on(0, MIB)}")
    assert "has ended" in run_cell("%gpumem record off").text
    assert not torch._C._cuda_isHistoryEnabled()
    assert {name: list(found) for name, found in ip.events.callbacks.items()} == before
    assert functions(torch) == own


def test_the_number_of_events_is_bounded(
    with_stacks: None, torch: ModuleType, ip: Any, run_cell: Any
) -> None:
    ip.user_ns["torch"] = torch
    run_cell("%gpumem record on -q --entries 100")
    run_cell(f"for i in range(200): {bytes_on(0, MIB)}")
    # The snapshot itself may be an event too.
    assert len(torch.cuda.memory._snapshot()["device_traces"][0]) <= 101


def test_unloading_stops_a_recording_of_ours_alone(
    with_stacks: None, torch: ModuleType, ip: Any, run_cell: Any
) -> None:
    run_cell("%gpumem record on -q")
    ip.extension_manager.reload_extension("gpumagic")
    assert not torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=100)
    try:
        assert "already, but not by %gpumem" in run_cell("%gpumem record on").text
        ip.extension_manager.reload_extension("gpumagic")
        assert torch._C._cuda_isHistoryEnabled()
        run_cell("%gpumem record off -q")
        assert not torch._C._cuda_isHistoryEnabled()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cells", "no history is recorded; begin with: %gpumem record on"),
        ("record maybe", "%gpumem record: write on or off, or nothing, not 'maybe'"),
        ("record on --entries 0", "'0' is not a number from 1"),
        ("snapshot", "required: FILE"),
        (
            "snapshot /nowhere/x.pickle",
            "cannot write /nowhere/x.pickle: there is no folder /nowhere",
        ),
    ],
)
def test_bad_input_is_one_line(torch: ModuleType, run_cell: Any, line: str, said: str) -> None:
    ran = run_cell(f"%gpumem {line}", raising=False)
    assert type(ran.error).__name__ == "UsageError"
    assert said in str(ran.error)
    assert "\n" not in str(ran.error)


# --- the snapshot -------------------------------------------------------------------------------


def test_the_snapshot(recorded: Any, tmp_path: Path) -> None:
    recorded(f"x = {bytes_on(0, 3 * MIB)}")
    path = tmp_path / "a file.pickle"
    ran = recorded(f"%gpumem snapshot '{path}' -o")
    assert "https://docs.pytorch.org/memory_viz" in ran.text
    assert ran.value.size == path.stat().st_size
    assert ran.value.events > 0
    found = pickle.loads(path.read_bytes())
    blocks = [b for s in found["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    assert [b["size"] for b in blocks] == [3 * MIB]
    assert blocks[0]["frames"]


def test_a_snapshot_without_history_says_so(
    run_cell: Any, torch: ModuleType, tmp_path: Path
) -> None:
    ran = run_cell(f"%gpumem snapshot '{tmp_path}/x' -o")
    assert ran.value.events == 0
    assert "no history, only live memory" in ran.text


# --- before torch, and in a kernel ---------------------------------------------------------------


def test_in_a_kernel(kernel: Any) -> None:
    """Recording begins with CUDA and does not initialise it; the same source twice has one name."""
    k = kernel()
    assert "torch is not imported" in k.run("%gpumem record on", raising=False).shown
    k.run("import torch")
    assert "Recording begins when CUDA is first used" in k.run("%gpumem record on").shown
    k.run("from gpumagic.cuda import driver\nassert driver.state().initialized is False")
    assert "already" in k.run("%gpumem record on").shown
    assert "first used" in k.run("%gpumem record").shown
    assert "No GPU memory is allocated" in k.run("%gpumem cells").shown
    # what waits is taken back
    waiting = "sum('History' in repr(call) for call, _ in torch.cuda._queued_calls)"
    assert k.run(waiting).value == "1"
    for end in ("%gpumem record off", "%reload_ext gpumagic"):
        k.run(end)
        assert k.run(waiting).value == "0"
        assert "No history is recorded" in k.run("%gpumem record").shown
        k.run("%gpumem record on -q --entries 5000")
    k.run("kept = []")
    again = "kept.append(torch.empty(2**20, dtype=torch.uint8, device='cuda'))"
    numbers = [k.run(again).execution_count for _ in range(2)]
    k.run("found = %gpumem cells -o -q")
    shown = k.run("sorted(h.number for h in found.devices[0])").value
    assert shown == str(numbers)
    assert "the newest 5,000 events" in k.run("%gpumem record").shown


def test_a_choice_of_gpus_after_recording_was_asked_for(kernel: Any) -> None:
    k = kernel()
    k.run("import torch\n%gpumem record on -q\n%gpu off")
    assert k.run("torch.cuda.is_available()").value == "False"


def test_without_a_gpu_there_is_nothing_to_record(kernel: Any) -> None:
    k = kernel(env={"CUDA_VISIBLE_DEVICES": "-1"})
    k.run("import torch")
    shown = k.run("%gpumem record on", raising=False).shown
    assert "there is nothing to record: no GPU is visible: CUDA_VISIBLE_DEVICES=-1" in shown
    assert "allocator" not in shown


def test_another_allocator_has_no_history(kernel: Any) -> None:
    k = kernel(env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    k.run("import torch\n%gpumem record on -q")
    # our failure, said in the user's cell, which goes on
    first = k.run("x = torch.empty(2**20, dtype=torch.uint8, device='cuda')").stdout
    assert "gpumagic: no history is recorded" in first
    assert "records no history" in k.run("%gpumem record on", raising=False).shown
    assert "records no history" in k.run("%gpumem snapshot x.pickle", raising=False).shown
    shown = k.run(
        "%%gpumem --lines\ny = torch.empty(2**20, dtype=torch.uint8, device='cuda')"
    ).shown
    assert "+1.00 MiB" in shown
    assert "what stayed is not known" in shown
