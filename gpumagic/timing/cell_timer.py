"""The times of every cell of a shell, by hooks around the cells: ``%cudatime on``.

Costs a cell that uses no GPU less than 0.3 ms, and waits for nothing before a cell. At a cell's end
its own GPU work is waited for, so that the time is its own and the next cell starts on an idle GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpumagic.cells.every_cell import EveryCell, Running, first_line
from gpumagic.cells.hooks import CellHooks
from gpumagic.results.logs import CellTiming, TimingLog
from gpumagic.results.timing import CudaTiming, is_bound
from gpumagic.timing.event_timer import Started, Stopped, gave_up, read, start, stop
from gpumagic.timing.summary import INTERRUPTED
from gpumagic.timing.times import Times

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult


@dataclass
class _TimedCell:
    """A cell that runs."""

    started: Started
    #: At the last exception: if the cell failed, its end.
    raised: Stopped | None = None
    #: What ``%cudatime`` has measured in it: its wait leaves no sign of work.
    measured: list[CudaTiming] = field(default_factory=list)


class CellTimer(EveryCell[CellTiming]):
    """Times the cells of one shell.

    Those that show a sign of GPU work or took longer than `above` seconds are shown. ``includes``
    is called with the source of each cell: False leaves it out.
    """

    def __init__(
        self,
        hooks: CellHooks,
        show: Callable[[CellTiming, str], None],
        includes: Callable[[str], bool],
    ) -> None:
        super().__init__(hooks, show)
        self._includes = includes
        self.above = 0.0

    def on(self, above: float) -> None:
        """Begin with the next cell; if on already, set the threshold."""
        self.above = above
        self._hooks.add(self._hook)

    def log(self) -> TimingLog:
        """Return the cells timed so far."""
        return TimingLog(tuple(self.records), self.watching)

    def note(self, timing: CudaTiming) -> None:
        """Add what ``%cudatime`` has measured to the running cell."""
        cell = self._hooks.outermost(self._hook)
        if cell is not None:
            cell.begun.measured.append(timing)

    def begin(self) -> _TimedCell:
        return _TimedCell(start(quiet=True))

    def raised(self, cell: Running) -> None:
        cell.begun.raised = stop(cell.begun.started)

    def end(self, cell: Running, result: ExecutionResult) -> None:
        begun: _TimedCell = cell.begun
        at_error = None if result.success else begun.raised
        stopped, interrupted = at_error or stop(begun.started), False
        try:
            times = read(stopped)
        except KeyboardInterrupt:
            times, interrupted = gave_up(stopped, INTERRUPTED), True
        if self._includes(cell.source):
            timing = _timing(
                times,
                begun.measured,
                cell=result.execution_count,
                source=first_line(cell.source),
                failed=interrupted or not result.success,
            )
            self.keep(timing, cell, shown=timing.used_gpu or interrupted or times.wall > self.above)
        if interrupted:
            raise KeyboardInterrupt(INTERRUPTED)  # which is the cell's


def _timing(times: Times, measured: Sequence[CudaTiming], **of_cell: Any) -> CellTiming:
    """Return the record of a cell: without a sign of GPU work, for all devices together."""
    has_gpu = bool(times.readings)
    shown = {i for each in measured if each.gpu_seen for i in each.per_device}
    lower = max(
        [times.lower, *(x.gpu_at_least.best for x in measured if x.gpu_at_least is not None)]
    )
    used = {i: reading.upper for i, reading in times.readings.items() if reading.sign or i in shown}
    return CellTiming(
        **of_cell,
        wall=times.wall,
        wall_at_most=times.wall_at_most,
        host=times.host,
        cpu=times.cpu,
        gpu=times.upper if has_gpu else None,
        gpu_at_least=lower if has_gpu else None,
        gpu_at_most=has_gpu and is_bound(times.upper, lower),
        per_device=used,
        used_gpu=bool(used),
        note=times.note,
    )
