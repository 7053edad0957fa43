"""``%gpumem record``, ``cells`` and ``snapshot``: the allocator's history, live memory by cell."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpumagic.results.memory.cell_holdings import CellHoldings
from gpumagic.results.memory.history import HistoryState
from tests.support.allocator import MIB, bytes_on


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


def test_what_is_from_before_or_of_another_thread_is_of_no_cell(
    torch: ModuleType, with_stacks: None, ip: Any, run_cell: Any
) -> None:
    """Autograd's threads have no Python stack."""
    ip.user_ns["torch"] = torch
    run_cell(f"x = {bytes_on(0, 5 * MIB)}")
    run_cell("%gpumem record on -q")
    run_cell("w = torch.zeros(1024, 1024, device='cuda', requires_grad=True)")
    run_cell("(w * 1).sum().backward()")
    assert held(run_cell) == {
        "w = torch.zeros(1024, 1024, device='cuda', requires_grad=True)": 4,
        "not known": 9,
    }
    means = "not known: allocated by another thread (gradients: by autograd's), or before the"
    assert means in run_cell("%gpumem cells").text, "in full"


def test_on_and_off(with_stacks: None, torch: ModuleType, run_cell: Any) -> None:
    assert "No history is recorded" in run_cell("%gpumem record").text
    ran = run_cell("%gpumem record on -o")
    assert ran.value == HistoryState(True, "Recording begins.")
    assert torch._C._cuda_isHistoryEnabled()
    assert "It is recorded already." in run_cell("%gpumem record on").text
    assert "Recording has ended" in run_cell("%gpumem record off").text
    assert not torch._C._cuda_isHistoryEnabled()


def test_unloading_stops_a_recording_of_ours_alone(
    with_stacks: None, torch: ModuleType, run_cell: Any
) -> None:
    run_cell("%gpumem record on -q")
    run_cell("%unload_ext gpumagic\n%load_ext gpumagic")
    assert not torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=100)
    try:
        assert "It is recorded already." in run_cell("%gpumem record on").text
        run_cell("%unload_ext gpumagic\n%load_ext gpumagic")
        assert torch._C._cuda_isHistoryEnabled()
        run_cell("%gpumem record off -q")
        assert not torch._C._cuda_isHistoryEnabled()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


# --- the snapshot -------------------------------------------------------------------------------


def test_the_snapshot(recorded: Any, tmp_path: Path) -> None:
    recorded(f"x = {bytes_on(0, 3 * MIB)}")
    path = tmp_path / "a file.pickle"
    ran = recorded(f"%gpumem snapshot '{path}' -o")
    assert "https://docs.pytorch.org/memory_viz" in ran.text
    assert ran.value.size == path.stat().st_size
    assert ran.value.history
    found = pickle.loads(path.read_bytes())
    blocks = [b for s in found["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    assert [b["size"] for b in blocks] == [3 * MIB]
    assert blocks[0]["frames"]


def test_a_snapshot_without_history_says_so(
    run_cell: Any, torch: ModuleType, tmp_path: Path
) -> None:
    ran = run_cell(f"%gpumem snapshot '{tmp_path}/x' -o")
    assert not ran.value.history
    assert "no history, only live memory" in ran.text


# --- in a kernel -----------------------------------------------------------------------------


def test_in_a_kernel(kernel: Any) -> None:
    """CUDA is not initialised by the question; a later choice of GPUs would be too late."""
    k = kernel()
    for line in ("record on", "cells", "snapshot x.pickle"):
        assert "CUDA is not in use yet" in k.run(f"%gpumem {line}", raising=False).shown
    k.run("import torch\nkept = [torch.empty(1, device='cuda')]\n%gpumem record on -q")
    again = "kept.append(torch.empty(2**20, dtype=torch.uint8, device='cuda'))"
    number = k.run(again).execution_count
    k.run("found = %gpumem cells -o -q")
    assert k.value("[h.number for h in found.devices[0]]") == [number, None]
