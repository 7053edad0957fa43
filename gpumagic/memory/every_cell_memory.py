"""The change of GPU memory by every cell of a shell, by hooks around the cells: ``%gpumem on``.

What changes between two cells (by a thread, by a widget) has a row of its own; but cells that
follow at once have nothing between them: reading the counters takes 17 µs a device. A cell that
another cell runs is part of that one.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from time import perf_counter

from gpumagic.cells.every_cell import EveryCell, Running, first_line
from gpumagic.cells.hooks import CellHooks
from gpumagic.cuda.pytorch import allocator, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.memory.exact_peaks import LEDGER, Scope
from gpumagic.memory.limit import memory_limit
from gpumagic.results.memory.memory_delta import only_changed
from gpumagic.results.memory.memory_log import BETWEEN_CELLS, CellLog, CellMemory

#: Seconds between two cells of which the second follows at once.
_AT_ONCE = 1e-3


class CellMeter(EveryCell[CellMemory]):
    """The change of GPU memory by the cells of one shell."""

    magic, done = "%gpumem", "measured"

    def __init__(self, hooks: CellHooks, show: Callable[[CellMemory], None]) -> None:
        super().__init__(hooks, show)
        self._lock = RLock()
        #: Counts for the cell that runs, and after it for what runs until the next cell.
        self._scope = Scope()
        #: Those of all cells that run now: a cell may run another one.
        self._running: list[Scope] = []
        #: When the last cell ended.
        self._ended = 0.0

    def on(self) -> None:
        """Begin to measure; the cell that is running counts from here. Does nothing if on."""
        if self.watching:
            return
        if why := allocator.uncounted():
            raise DeviceError(f"memory cannot be measured: {why}")
        self._scope, self._running, self._ended = LEDGER.open(), [], perf_counter()
        self._hooks.add(self, running=True)

    def off(self) -> None:
        super().off()
        with self._lock:
            for scope in (self._scope, *self._running):
                LEDGER.drop(scope)

    def log(self) -> CellLog:
        """Return the records until now."""
        limits = {i: memory_limit(i) for i in torch_cuda.contexts()}
        known = {i: limit for i, limit in limits.items() if limit is not None}
        return CellLog(tuple(self.records), self.watching, known)

    def begin(self) -> Scope:
        """Return the scope of a cell: one of its own where it runs beside another cell."""
        with self._lock:
            scope = LEDGER.open() if self._running else self._scope
            waited = perf_counter() - self._ended
            if scope is self._scope and waited > _AT_ONCE:
                changed = LEDGER.restart(scope)
                if only_changed(changed):
                    self.records.append(CellMemory(None, BETWEEN_CELLS, waited, changed))
            self._running.append(scope)
            return scope

    def end(self, cell: Running, number: int | None, *, failed: bool) -> None:
        seconds, scope = perf_counter() - cell.started, cell.begun
        with self._lock:
            self._running.remove(scope)
            is_own = scope is not self._scope
            devices = LEDGER.close(scope) if is_own else LEDGER.restart(scope)
            if is_own and not self._running:
                LEDGER.restart(self._scope)
            self._ended = perf_counter()
        record = CellMemory(
            number=number,
            source=first_line(cell.source),
            seconds=seconds,
            devices=devices,
            failed=failed,
        )
        self.keep(record, shown=bool(record.changed))
