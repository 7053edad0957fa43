"""Measure the change of GPU memory by every cell of a shell, by hooks around the cells.

The counters are read once a cell and device: the reading at a cell's end is the next one's start.
So changes between two cells (by a thread, by a widget) count to the second. A cell
that another cell runs is part of that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.cells.records import CellRecords, first_line
from gpumagic.cuda import torch_cuda
from gpumagic.memory.limit import memory_limit
from gpumagic.memory.peak_ledger import LEDGER, Scope
from gpumagic.results.logs import CellLog, CellMemory
from gpumagic.system import text


class _Running(NamedTuple):
    """A cell that is running."""

    source: str
    started: float


class EveryCell:
    """Measures the cells of one shell, from `on` to `off`.

    ``show`` is called after each cell that changed GPU memory.
    """

    def __init__(self, hooks: CellHooks, show: Callable[[CellMemory], None]) -> None:
        self._hooks = hooks
        self._hook = CellHook(self._after, self._failed, self._begin)
        self._show = show
        self._cells: CellRecords[CellMemory] = CellRecords()
        #: The scope that is restarted at every end of a cell; None while off.
        self._scope: Scope | None = None

    @property
    def watching(self) -> bool:
        return self._scope is not None

    def on(self) -> None:
        """Begin to measure; the cell that is running counts from here. Does nothing if on."""
        if self.watching:
            return
        self._scope = LEDGER.open()
        try:
            self._hooks.add(self._hook, running=True)
        except BaseException:
            self.off()
            raise

    def off(self) -> None:
        """Stop measuring. The records stay."""
        if self._scope is None:
            return
        self._hooks.remove(self._hook)
        LEDGER.drop(self._scope)
        self._scope = None

    def log(self) -> CellLog:
        """Return the records until now."""
        limits = {i: memory_limit(i) for i in torch_cuda.contexts()}
        known = {i: limit for i, limit in limits.items() if limit is not None}
        return CellLog(tuple(self._cells), self._cells.dropped, self.watching, known)

    # --- the hooks ---------------------------------------------------------------------------

    def _begin(self, info: Any, outer: _Running | None) -> _Running | None:
        if outer is not None:
            return None  # a part of the cell that runs it
        return _Running(first_line(info.raw_cell), time.perf_counter())

    def _after(self, running: _Running | None, result: Any) -> None:
        if running is None or self._scope is None:
            return
        ended = time.perf_counter()
        devices = {i: each.delta() for i, each in LEDGER.restart(self._scope).items()}
        cell = CellMemory(
            number=result.execution_count,
            source=running.source,
            seconds=ended - running.started,
            devices=devices,
            failed=not result.success,
        )
        self._cells.add(cell)
        if cell.changed:
            self._show(cell)

    def _failed(self, error: Exception) -> None:
        """Print a line about a failure of gpumagic, and stop measuring."""
        self.off()
        print(
            f"%gpumem: cells are not measured any more ({text.named(error)}); "
            "'%gpumem on' starts again"
        )
