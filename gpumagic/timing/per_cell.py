"""The times of every cell of a shell, by hooks around the cells: ``%cudatime on``.

Costs a cell that uses no GPU less than 0.3 ms, and waits for nothing before a cell. At a cell's end
its own GPU work is waited for, so that the time is its own and the next cell starts on an idle GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any, NamedTuple

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.cells.records import CellRecords, first_line
from gpumagic.results.logs import CellTiming, TimingLog
from gpumagic.system import text
from gpumagic.timing.event_timer import EventTimer, Reading
from gpumagic.timing.run import INTERRUPTED, Run, summarize


class _Started(NamedTuple):
    """What is known when a cell starts."""

    source: str
    cpu: float
    started: float


class CellTimer:
    """Times the cells of one shell. `off` undoes `on` exactly.

    ``show`` is called after each cell that used the GPU or took longer than ``above`` seconds,
    ``includes`` with the source of each cell: False leaves it out.
    """

    def __init__(
        self,
        hooks: CellHooks,
        show: Callable[[CellTiming, str], None],
        includes: Callable[[str], bool],
    ) -> None:
        self._show = show
        self._includes = includes
        self._hooks = hooks
        self._hook = CellHook(self._end, self._failed, self._begin)
        self._timer = EventTimer(disturbs=False)
        self._cells: CellRecords[CellTiming] = CellRecords()
        self.above = 0.0

    @property
    def watching(self) -> bool:
        return self._hook in self._hooks

    def on(self, above: float) -> None:
        """Begin with the next cell; if on already, set the threshold."""
        self.above = above
        self._hooks.add(self._hook)

    def off(self) -> None:
        """Stop timing. The log stays."""
        self._hooks.remove(self._hook)

    def log(self) -> TimingLog:
        """Return the cells timed so far."""
        return TimingLog(tuple(self._cells), self._cells.dropped, self.watching)

    # --- the hooks ---------------------------------------------------------------------------

    def _begin(self, info: Any, outer: _Started | None) -> _Started | None:
        if outer is not None:
            return None  # a part of the cell that runs it
        cpu = process_time()
        self._timer.prepare()
        self._timer.start()
        return _Started(info.raw_cell, cpu, perf_counter())

    def _end(self, start: _Started | None, result: Any) -> None:
        if start is None:
            return
        stopped = perf_counter()
        cpu = process_time() - start.cpu
        if not self._includes(start.source):
            return
        try:
            self._timer.stop()
            readings = self._timer.finish(start.started, stopped)
            note = self._timer.note
        except KeyboardInterrupt:
            # The cell has ended: the interrupt ends only this wait for the GPU.
            readings, note = {}, INTERRUPTED
        wall = stopped - start.started
        worked = any(reading.worked for reading in readings.values())
        cell = CellTiming(
            cell=result.execution_count,
            source=first_line(start.source),
            wall=wall,
            host=wall,
            cpu=cpu,
            failed=not result.success,
            note=note,
        )
        if worked:
            cell = _with_gpu(cell, start.started, readings)
        self._cells.add(cell)
        if worked or wall > self.above:
            self._show(cell, start.source)

    def _failed(self, error: Exception) -> None:
        """Print a line about a failure of gpumagic; the hooks are off."""
        print(
            f"%cudatime: cells are not timed any more ({text.named(error)}); "
            "'%cudatime on' starts again"
        )


def _with_gpu(cell: CellTiming, started: float, readings: dict[int, Reading]) -> CellTiming:
    """Return ``cell`` with the GPU times, as `summarize` computes them for a run."""
    wall = max(reading.finished for reading in readings.values()) - started
    timing = summarize([Run(wall, cell.host, cell.cpu, readings)])
    return replace(
        cell,
        wall=wall,
        gpu=None if timing.gpu is None else timing.gpu.median,
        per_device={ordinal: sample.median for ordinal, sample in timing.per_device.items()},
        gpu_at_most=timing.gpu is not None and timing.gpu_at_most,
        used_gpu=True,
        note=timing.gpu_note if timing.gpu is None else cell.note,
    )
