"""Measure every cell of a shell: the change of GPU memory, by hooks around the cells.

The counters are read once a cell and device: the reading at a cell's end is the next one's start.
What happens between two cells (in a thread, by a widget) therefore counts to the second. A cell
that another cell runs is part of that one, and has a record of its own only if the shell gives it a
number of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpumagic.cells.hooks import first_line
from gpumagic.cuda import torch_cuda
from gpumagic.memory.cell_log import MemoryLog
from gpumagic.memory.peak_ledger import LEDGER, Interval, Scope
from gpumagic.results import CellLog, CellMemory, DeviceMemoryDelta
from gpumagic.system import text


class _Running(NamedTuple):
    """A cell that is running."""

    info: Any  # IPython's ExecutionInfo: known again at the cell's end
    scope: Scope
    started: float


class EveryCell:
    """Measures the cells of one shell, from `on` to `off`.

    ``show`` is called after each cell that changed GPU memory.
    """

    def __init__(self, shell: Any, show: Callable[[CellMemory], None]) -> None:
        self._shell = shell
        self._show = show
        self._log = MemoryLog()
        self._running: dict[int, _Running] = {}
        self._idle: dict[int, DeviceMemoryDelta] = {}
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
        self._shell.events.register("pre_run_cell", self._before)
        self._shell.events.register("post_run_cell", self._after)
        running = getattr(self._shell.displayhook, "exec_result", None)
        if running is not None and running.info is not None:
            self._begin(running.info)

    def off(self) -> None:
        """Stop measuring. The records stay."""
        if self._scope is None:
            return
        for event, hook in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            if hook in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, hook)
        self._idle.clear()
        scopes = {id(s): s for s in (self._scope, *(cell.scope for cell in self._running.values()))}
        self._scope = None
        self._running.clear()
        for scope in scopes.values():
            LEDGER.drop(scope)

    def log(self) -> CellLog:
        """Return the records until now."""
        limits = {i: torch_cuda.memory_limit(i) for i in torch_cuda.contexts()}
        return self._log.result(
            {i: limit for i, limit in limits.items() if limit is not None}, watching=self.watching
        )

    # --- the hooks ---------------------------------------------------------------------------

    def _before(self, info: Any) -> None:
        try:
            self._begin(info)
        except Exception as error:
            self._stop_after(error)

    def _after(self, result: Any) -> None:
        ended = time.perf_counter()
        try:
            if result is None:  # the cell was cancelled: it is charged to the next one
                self._running.clear()
                return
            running = self._running.pop(id(result.info), None)
            if running is not None:  # an empty cell never began
                self._end(running, result, ended)
        except Exception as error:
            self._stop_after(error)

    def _begin(self, info: Any) -> None:
        assert self._scope is not None
        if any(cell.scope is self._scope for cell in self._running.values()):
            if not getattr(info, "store_history", False):
                return  # a part of the cell that runs it
            scope = LEDGER.open()
        else:
            scope = self._scope
        self._running[id(info)] = _Running(info, scope, time.perf_counter())

    def _end(self, running: _Running, result: Any, ended: float) -> None:
        devices: Mapping[int, DeviceMemoryDelta]
        if running.scope is self._scope:
            devices = {i: self._delta(i, each) for i, each in LEDGER.restart(running.scope).items()}
        else:
            devices = LEDGER.close(running.scope)
        cell = CellMemory(
            number=result.execution_count,
            source=first_line(running.info.raw_cell),
            seconds=ended - running.started,
            devices=devices,
            failed=not result.success,
        )
        self._log.add(cell)
        if cell.changed:
            self._show(cell)

    def _delta(self, ordinal: int, interval: Interval) -> DeviceMemoryDelta:
        """Return the change on a device; for an idle one, the same object each time."""
        if not interval.idle:
            self._idle.pop(ordinal, None)
            return interval.delta()
        if ordinal not in self._idle:
            self._idle[ordinal] = interval.delta()
        return self._idle[ordinal]

    def _stop_after(self, error: Exception) -> None:
        """Stop after an error of ours, with one line; the user's cells go on."""
        self.off()
        print(
            f"%gpumem: cells are watched no longer ({text.named(error)}); '%gpumem on' begins anew"
        )
