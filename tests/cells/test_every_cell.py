"""What is measured of every cell, by hooks around it: bounded records, failures, interrupts."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gpumagic.cells import every_cell
from gpumagic.magics.explaining import Explainer
from gpumagic.memory.every_cell_memory import CellMeter
from gpumagic.timing.cell_timer import CellTimer
from tests.support.shells import registered, run_cell, shell

MODES: dict[str, Any] = {"cudatime": CellTimer, "gpumem": CellMeter}
ON = "%cudatime on -q --above 60s\n%gpumem on -q"


def log(run: Any, magic: str) -> list[str]:
    return [cell.source for cell in run(f"%{magic} log -o -q").value]


def broken(*_: Any, **__: Any) -> Any:
    raise ValueError("oops")


@pytest.mark.parametrize("magic", MODES)
def test_the_newest_records_stay(
    magic: str, ip: Any, run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(every_cell, "MAX_CELLS", 2)
    for cell in (ON, ON, "1", "get_ipython().run_cell('2')", "3"):
        run_cell(cell)
    ip.run_cell("4", store_history=False)  # as VS Code asks for the variables
    assert log(run_cell, magic) == ["get_ipython().run_cell('2')", "3"]


@pytest.mark.parametrize("where", ["begin", "end"])
@pytest.mark.parametrize("magic", MODES)
def test_a_failure_ends_one_and_leaves_the_cell_and_the_other_alone(
    magic: str, where: str, ip: Any, run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, (other,) = registered(ip)["callbacks"], {*MODES} - {magic}
    run_cell(ON)
    with monkeypatch.context() as patch:
        patch.setattr(MODES[magic], where, broken)
        ran = run_cell("40 + 2", raising=False)
    assert ran.value == 42
    assert f"%{magic}: cells are not" in ran.stdout
    assert f"(ValueError: oops); '%{magic} on' starts again" in ran.stdout
    assert "40 + 2" not in log(run_cell, magic)
    assert "40 + 2" in log(run_cell, other)
    run_cell(f"%{other} off")
    assert registered(ip)["callbacks"] == before


def test_another_hook_that_fails_is_removed(run_cell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Explainer, "after", broken)
    ran, again = (run_cell("40 + 2", raising=False) for _ in range(2))
    assert (ran.value, again.value, again.stderr) == (42, 42, "")
    assert "a hook around cells was removed: it failed (ValueError: oops)" in ran.stderr


def test_an_interrupt_before_a_cell_is_shown_and_both_go_on(
    run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is waited for there; IPython shows it, and runs the cell."""

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    run_cell(ON)
    with monkeypatch.context() as patch:
        patch.setattr(CellTimer, "begin", interrupted)
        ran = run_cell("40 + 2")
    assert (ran.value, "KeyboardInterrupt" in ran.stdout) == (42, True)
    run_cell("x = 1")
    assert log(run_cell, "cudatime") == ["x = 1"], "begun with the cell after it was turned on"
    assert log(run_cell, "gpumem")[:3] == ["%cudatime on -q --above 60s", "40 + 2", "x = 1"]


def test_a_cell_that_loads_gpumagic_counts_from_there(virtual_gpu: Any) -> None:
    with shell(load=False) as ip:
        run_cell(ip, "%load_ext gpumagic\n%gpumem on -q")
        assert log(partial(run_cell, ip), "gpumem") == ["%load_ext gpumagic"]
        run_cell(ip, "%unload_ext gpumagic")
