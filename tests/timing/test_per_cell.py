"""The timer of a shell's cells, without the magic."""

from __future__ import annotations

from typing import Any

from gpumagic.cells.hooks import CellHooks
from gpumagic.results.logs import CellTiming
from gpumagic.timing.per_cell import CellTimer


def test_cells_are_logged_and_only_long_ones_shown(ip: Any, run_cell: Any, clock: None) -> None:
    shown: list[tuple[CellTiming, str]] = []
    hooks = CellHooks(ip)
    timer = CellTimer(hooks, lambda *cell: shown.append(cell), lambda source: "skip" not in source)
    before = {event: [*hooks] for event, hooks in ip.events.callbacks.items()}
    timer.on(above=0.1)
    timer.on(above=0.2)  # on already: only the threshold changes
    try:
        for source in ("import time", "time.sleep(0.15)", "time.sleep(0.3)", "'skip'"):
            run_cell(source)
        run_cell("1 / 0", raising=False)
        assert timer.watching
    finally:
        timer.off()
    run_cell("x = 1")
    hooks.clear()
    assert {event: [*hooks] for event, hooks in ip.events.callbacks.items()} == before
    log = timer.log()
    assert [cell.source for cell in log] == [
        "import time",
        "time.sleep(0.15)",
        "time.sleep(0.3)",
        "1 / 0",
    ]
    assert [cell.failed for cell in log] == [False, False, False, True]
    assert not log.watching
    assert [(cell.wall >= 0.3, source) for cell, source in shown] == [(True, "time.sleep(0.3)")]
