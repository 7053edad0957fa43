"""The times of every cell of a shell, by hooks around the cells: ``%cudatime on``.

Costs a cell that uses no GPU less than 0.3 ms, and waits for nothing before a cell. At a cell's end
its own GPU work is waited for, so that the time is its own and the next cell starts on an idle GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpumagic.cells.every_cell import EveryCell, Running, first_line
from gpumagic.cells.hooks import CellHooks
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.sample import is_bound
from gpumagic.results.timing.timing_log import CellTiming, TimingLog
from gpumagic.timing.event_timer import INTERRUPTED, Started, Stopped, read_or_give_up, start, stop
from gpumagic.timing.run_times import Times


@dataclass
class _TimedCell:
    """A cell that runs."""

    started: Started
    #: At the last exception: if the cell failed, its end.
    raised: Stopped | None = None
    #: Whether ``%cudatime`` has run in it, and what that has measured: its wait for the GPU leaves
    #: no sign of work.
    has_call: bool = False
    measured: list[CudaTiming] = field(default_factory=list)


class CellTimer(EveryCell[CellTiming]):
    """Times the cells of one shell.

    Those that show a sign of GPU work or took longer than `above` seconds are shown. A cell that is
    a call of ``%cudatime`` alone has shown its times itself; where this has measured nothing, as a
    verb has not, the cell is left out.
    """

    magic, done = "%cudatime", "timed"

    def __init__(self, hooks: CellHooks, show: Callable[[CellTiming], None]) -> None:
        super().__init__(hooks, show)
        self.above = 0.0

    def on(self, above: float) -> None:
        """Begin with the next cell; if on already, set the threshold."""
        self.above = above
        self._hooks.add(self)

    def log(self) -> TimingLog:
        """Return the cells timed so far."""
        return TimingLog(tuple(self.records), self.watching)

    def note_call(self, *measured: CudaTiming) -> None:
        """Note for the running cell that ``%cudatime`` runs in it, and what that has measured."""
        cell = self._hooks.outermost(self)
        if cell is not None:
            cell.begun.has_call = True
            cell.begun.measured += measured

    def begin(self) -> _TimedCell:
        return _TimedCell(start(quiet=True))

    def raised(self, begun: Running) -> None:
        begun.begun.raised = stop(begun.begun.started)

    def end(self, cell: Running, number: int | None, *, failed: bool) -> None:
        begun: _TimedCell = cell.begun
        at_error = begun.raised if failed else None
        times, interrupt = read_or_give_up(at_error or stop(begun.started))
        source = cell.source.strip()
        # A function that the cell calls may have ``%cudatime`` in it, too: this is no such call.
        is_alone = "\n" not in source or source.startswith("%%cudatime")
        is_call = begun.has_call and is_alone and "cudatime" in source
        if begun.measured or not is_call:
            times = _with_measured(times, begun.measured)
            has_gpu = bool(times.readings)
            timing = CellTiming(
                cell=number,
                source=first_line(cell.source),
                wall=times.wall,
                wall_at_most=times.wall_at_most,
                host=times.host,
                cpu=times.cpu,
                gpu=times.upper if has_gpu else None,
                gpu_at_least=times.lower if has_gpu else None,
                gpu_at_most=has_gpu and is_bound(times.upper, times.lower),
                per_device={i: times.readings[i].upper for i in times.signs},
                used_gpu=bool(times.signs),
                failed=interrupt is not None or failed,
                note=times.note,
            )
            counts = timing.used_gpu or interrupt is not None or times.wall > self.above
            self.keep(timing, shown=counts and not is_call)
        if interrupt is not None:
            raise KeyboardInterrupt(INTERRUPTED)  # which is the cell's


def _with_measured(times: Times, measured: Sequence[CudaTiming]) -> Times:
    """Return the times of a cell with the work that was measured in it."""
    seen = {i for each in measured if each.gpu_seen for i in each.per_device}
    least = [each.gpu_at_least.best for each in measured if each.gpu_at_least is not None]
    return times.with_work({**dict.fromkeys(seen, 0.0), None: max(least, default=0.0)})
