"""What is measured of every cell: bounded records, failures."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.cells import every_cell
from gpumagic.cells.every_cell import EveryCell, Running
from gpumagic.cells.hooks import CellHooks


class Sources(EveryCell[str]):
    """Records the sources of cells; shows those that end so."""

    magic, done = "%cudatime", "timed"

    def on(self) -> None:
        self._hooks.add(self)

    def end(self, cell: Running, number: int | None, *, failed: bool) -> None:
        if "fails" in cell.source:
            raise ValueError("oops")
        self.keep(cell.source, shown="show" in cell.source)


def test_what_a_front_end_runs_for_itself_is_not_measured(ip: Any) -> None:
    """As VS Code asks for the variables: outside the history."""
    mode = Sources(CellHooks(ip), lambda *_: None)
    mode.on()
    ip.run_cell("hidden = 1", store_history=False)
    ip.run_cell("shown = 1", store_history=True)
    mode.off()
    assert [*mode.records] == ["shown = 1"]


def test_the_newest_records_stay_and_a_failure_ends_it(
    ip: Any, run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(every_cell, "MAX_CELLS", 2)
    shown: list[tuple[str, str]] = []
    hooks = CellHooks(ip)
    before = {event: [*found] for event, found in ip.events.callbacks.items()}
    mode = Sources(hooks, shown.append)
    mode.on()
    mode.on()  # on already
    for source in ("1", "'show'", "get_ipython().run_cell('2')"):
        run_cell(source)
    assert [*mode.records] == ["'show'", "get_ipython().run_cell('2')"]
    assert shown == ["'show'"]
    ran = run_cell("'fails'", raising=False)
    assert ran.value == "fails"
    says = "%cudatime: cells are not timed any more (ValueError: oops); '%cudatime on' starts again"
    assert says in ran.stdout
    assert not mode.watching
    assert {event: [*found] for event, found in ip.events.callbacks.items()} == before
