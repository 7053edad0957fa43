"""``%gpumem on``, ``off``, ``log``, ``plot``: the change by every cell, without side effects."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Event, Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.results.memory.memory_log import CellLog
from tests.support.allocator import MIB, bytes_on, functions


@pytest.fixture
def watched(torch: ModuleType, ip: Any, run_cell: Any) -> Any:
    """``run_cell`` with ``%gpumem on``."""
    ip.user_ns["torch"] = torch
    run_cell("%gpumem on -q")
    return run_cell


def log(run_cell: Any) -> CellLog:
    found = run_cell("%gpumem log -o -q").value
    assert isinstance(found, CellLog)
    return found


# --- the line -----------------------------------------------------------------------------------


def test_a_line_after_a_cell_that_changed_something(watched: Any) -> None:
    ran = watched(f"x = {bytes_on(0, 3 * MIB)}\ny = {bytes_on(0, 10 * MIB)}\ndel y")
    assert ran.text == "GPU memory: cuda:0 +3.00 MiB, peak +13.0 MiB, now 3.00 MiB"
    assert "opacity" in ran.html  # dim
    assert watched("1").displays == []
    ran = watched("del x")
    assert ran.text == "GPU memory: cuda:0 −3.00 MiB, peak 0 B, now 0 B"


def test_hooks_survive_cells_that_fail(watched: Any, torch: ModuleType) -> None:
    ran = watched(f"x = {bytes_on(0, MIB)}\nraise KeyError('mine')", raising=False)
    assert type(ran.error) is KeyError
    assert "+1.00 MiB" in ran.text
    ran = watched(bytes_on(0, 2**50), raising=False)
    assert type(ran.error) is torch.OutOfMemoryError
    assert "(out of memory: cuda:0)" in ran.text
    assert type(watched("= 1", raising=False).error) is SyntaxError
    assert watched("").displays == []
    assert "+2.00 MiB" in watched(f"y = {bytes_on(0, 2 * MIB)}").text
    assert [cell.failed for cell in log(watched)] == [False, True, True, True, False]


def test_off_removes_the_hooks(torch: ModuleType, run_cell: Any, ip: Any) -> None:
    ip.user_ns["torch"] = torch
    own = functions(torch)
    before = {name: list(found) for name, found in ip.events.callbacks.items()}
    run_cell("%gpumem off")  # off already, too
    run_cell("%gpumem on")
    run_cell("%gpumem on")  # on already: nothing changes
    assert functions(torch) != own
    run_cell(f"x = {bytes_on(0, MIB)}")
    run_cell("%gpumem off")
    assert {name: list(found) for name, found in ip.events.callbacks.items()} == before
    assert functions(torch) == own
    assert run_cell(f"y = {bytes_on(0, MIB)}").displays == []
    assert [cell.source[:10] for cell in log(run_cell)] == [
        "%gpumem on",
        "%gpumem on",
        "x = torch.",
    ]


def test_off_beside_a_running_cell_leaves_torch_as_it_was(
    torch: ModuleType, run_cell: Any, ip: Any
) -> None:
    """As a subshell's cell runs beside the main shell's."""
    own = functions(torch)
    run_cell("%gpumem on -q")
    ip.user_ns |= {"started": (started := Event()), "go_on": (go_on := Event())}
    beside = Thread(target=ip.run_cell, args=("started.set(); go_on.wait(400)", True))
    beside.start()
    try:
        assert started.wait(400)
        run_cell("%gpumem off")
        assert functions(torch) == own
    finally:
        go_on.set()
        beside.join()
    assert functions(torch) == own


# --- cells within cells ----------------------------------------------------------------------


def test_a_cell_within_a_cell_is_part_of_it(watched: Any) -> None:
    inner = f"y = {bytes_on(0, 2 * MIB)}"
    ran = watched(f"x = {bytes_on(0, MIB)}\nget_ipython().run_cell({inner!r});")
    assert ran.text == "GPU memory: cuda:0 +3.00 MiB, peak +3.00 MiB, now 3.00 MiB"
    ran = watched(f"get_ipython().run_cell({inner!r}, store_history=True);")
    assert ran.text == "GPU memory: cuda:0 0 B, peak +2.00 MiB, now 3.00 MiB"


def test_what_runs_between_cells_is_not_the_next_ones(watched: Any, ip: Any, torch: Any) -> None:
    """A thread, a task, a widget, or what a front end runs for itself: it has a row of its own."""
    watched("import time")
    ip.user_ns["x"] = torch.zeros(MIB // 4, device="cuda:0")
    ip.run_cell(f"y = {bytes_on(0, MIB)}; time.sleep(0.01)", store_history=False)
    assert watched("1").displays == []
    between, cell = log(watched)[-2:]
    assert (between.number, between.source) == (None, "(between cells)")
    assert between.devices[0].allocated == 2 * MIB
    assert not cell.changed
    assert "(between cells)" in watched("%gpumem log").text


def test_a_cancelled_cell_has_a_row_and_ends(watched: Any, ip: Any, torch: Any) -> None:
    watched("import time")
    cell = SimpleNamespace(raw_cell="await forever()", store_history=True)
    ip.events.trigger("pre_run_cell", cell)
    ip.user_ns["x"] = torch.zeros(MIB // 4, device="cuda:0")
    ip.events.trigger("post_run_cell", None)
    ip.run_cell(f"y = {bytes_on(0, 2 * MIB)}; time.sleep(0.01)", store_history=False)
    watched("1")
    cancelled, between, _ = log(watched)[-3:]
    assert (cancelled.number, cancelled.source) == (None, "await forever()")
    assert cancelled.failed
    assert cancelled.devices[0].allocated == MIB
    assert between.source == "(between cells)"
    assert between.devices[0].allocated == 2 * MIB


# --- the log ------------------------------------------------------------------------------------


def test_the_log(watched: Any) -> None:
    watched(f"\n  # a comment\nx = {bytes_on(1, 5 * MIB)}")
    watched("del x")
    watched("1")
    found = log(watched)
    comment, freed, idle = found[1:4]
    assert (comment.source, freed.source, idle.source) == ("# a comment", "del x", "1")
    assert comment.number is not None
    assert freed.number == comment.number + 1
    assert comment.devices[1].peak == 5 * MIB
    assert freed.devices[1].allocated == -5 * MIB
    assert not idle.changed
    assert all(cell.seconds > 0 for cell in found)
    text = watched("%gpumem log").text
    assert re.search(rf"\[{freed.number}\] +(cuda:1 +)?−5.00 MiB +0 B .*del x\n", text)


# --- the plot -----------------------------------------------------------------------------------


def test_the_plot(matplotlib: ModuleType, watched: Any, tmp_path: Path) -> None:
    watched(f"x = {bytes_on(0, 30 * MIB)}\ndel x\nx = {bytes_on(0, MIB)}")
    watched(bytes_on(0, 2**50), raising=False)
    ran = watched("%gpumem plot -o")
    (bundle,) = ran.displays
    assert bundle["image/png"]
    (axes,) = ran.value.axes
    assert max(bar.get_y() + bar.get_height() for bar in axes.patches) == 30 * MIB

    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines["allocated"].get_ydata()) == [0, MIB, MIB]
    assert list(lines["reserved"].get_ydata()) == [0, 32 * MIB, 2 * MIB]
    assert list(lines["out of memory"].get_xdata()) == [2]
    path = tmp_path / "cells.svg"
    assert str(path) in watched(f"%gpumem plot '{path}'").stdout
    said = watched(f"%gpumem plot '{path.with_name('other')}'").stdout
    assert said.strip().endswith("other.png"), "a name without a suffix"
    assert path.with_name("other.png").exists()
    assert path.read_text(encoding="utf-8").startswith("<?xml")
    for wrong in (tmp_path / "nowhere/x.png", tmp_path / "x.nonsense"):
        with pytest.raises(UsageError, match="cannot write"):
            watched(f"%gpumem plot '{wrong}'")
