"""The times of every cell of a shell, by hooks around the cells: ``%cudatime on``.

Costs a cell that uses no GPU less than 0.3 ms, and waits for nothing before a cell. At a cell's end
its own GPU work is waited for, so that the time is its own and the next cell starts on an idle GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any

from gpumagic.cells.every_cell import EveryCell, Running, first_line
from gpumagic.cells.hooks import CellHooks
from gpumagic.results.logs import CellTiming, TimingLog
from gpumagic.timing.event_timer import EventTimer, Reading
from gpumagic.timing.run import INTERRUPTED, Run, summarize


class CellTimer(EveryCell[CellTiming]):
    """Times the cells of one shell.

    Those that used the GPU or took longer than `above` seconds are shown. ``includes`` is called
    with the source of each cell: False leaves it out.
    """

    def __init__(
        self,
        hooks: CellHooks,
        show: Callable[[CellTiming, str], None],
        includes: Callable[[str], bool],
    ) -> None:
        super().__init__(hooks, show)
        self._includes = includes
        self._timer = EventTimer(disturbs=False)
        self.above = 0.0

    def on(self, above: float) -> None:
        """Begin with the next cell; if on already, set the threshold."""
        self.above = above
        self._hooks.add(self._hook)

    def log(self) -> TimingLog:
        """Return the cells timed so far."""
        return TimingLog(tuple(self.records), self.watching)

    def begin(self) -> None:
        self._timer.prepare()
        self._timer.start()

    def end(self, cell: Running, result: Any) -> None:
        stopped = perf_counter()
        cpu = process_time() - cell.cpu
        if not self._includes(cell.source):
            return
        try:
            stopped = self._timer.stop(stopped)
            readings = self._timer.finish(cell.started, stopped)
            note = self._timer.note
        except KeyboardInterrupt:
            # The cell has ended: the interrupt ends only this wait for the GPU.
            readings, note = {}, INTERRUPTED
        wall = stopped - cell.started
        timing = CellTiming(
            cell=result.execution_count,
            source=first_line(cell.source),
            wall=wall,
            host=wall,
            cpu=cpu,
            failed=not result.success,
            note=note,
        )
        worked = any(reading.worked for reading in readings.values())
        if worked:
            timing = _with_gpu(timing, cell.started, readings)
        self.keep(timing, cell, shown=worked or wall > self.above)


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
