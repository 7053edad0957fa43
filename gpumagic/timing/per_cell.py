"""The automatic mode of the timer: how long every cell took, by hooks around the cells of a shell.

Costs a cell that uses no GPU less than 0.3 ms, and nothing is waited for before a cell. At a cell's
end its own GPU work is, so that the figure is its own and the next cell begins with an idle GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any, NamedTuple

from gpumagic.cells.hooks import KEPT, CellHooks, first_line
from gpumagic.results import CellTiming, TimingLog
from gpumagic.system import text
from gpumagic.timing.event_timer import Reading
from gpumagic.timing.passive_timer import Passing
from gpumagic.timing.run import INTERRUPTED, Lap, summarize


class _Begun(NamedTuple):
    """What is known when a cell begins."""

    source: str
    cpu: float
    started: float


class _Idle(NamedTuple):
    """A cell that nothing is told about. Most are: a `CellTiming` when somebody asks."""

    cell: int | None
    source: str
    wall: float
    cpu: float
    failed: bool
    note: str | None

    def timing(self) -> CellTiming:
        return CellTiming(
            cell=self.cell,
            source=self.source,
            wall=self.wall,
            host=self.wall,
            cpu=self.cpu,
            failed=self.failed,
            note=self.note,
        )


class EveryTiming:
    """Times the cells of one shell. `on` and `off` are exact opposites.

    ``tell`` is called after each cell that used the GPU or took longer than ``above`` seconds,
    ``wanted`` with the source of each cell: False leaves it out.
    """

    def __init__(
        self, shell: Any, tell: Callable[[CellTiming, str], None], wanted: Callable[[str], bool]
    ) -> None:
        self._tell = tell
        self._wanted = wanted
        self._hooks = CellHooks(shell, self._begin, self._end, self._failed)
        self._passing = Passing()
        self._cells: deque[CellTiming | _Idle] = deque(maxlen=KEPT)
        self._forgotten = 0
        self.above = 0.0

    @property
    def watching(self) -> bool:
        return self._hooks.attached

    def on(self, above: float) -> None:
        """Begin with the next cell, or go on with another threshold."""
        self.above = above
        self._hooks.attach()

    def off(self) -> None:
        """Stop. The records stay."""
        self._hooks.detach()

    def log(self) -> TimingLog:
        """The records until now."""
        cells = (cell.timing() if isinstance(cell, _Idle) else cell for cell in self._cells)
        return TimingLog(tuple(cells), self._forgotten, self.watching)

    # --- the hooks ---------------------------------------------------------------------------

    def _begin(self, info: Any) -> _Begun:
        cpu = process_time()
        self._passing.start()
        return _Begun(info.raw_cell, cpu, perf_counter())

    def _end(self, begun: _Begun, result: Any) -> None:
        stopped = perf_counter()
        cpu = process_time() - begun.cpu
        if not self._wanted(begun.source):
            return
        try:
            readings = self._passing.stop(begun.started, stopped)
            note = self._passing.note
        except KeyboardInterrupt:
            # The cell is done, and the user has seen enough of the wait for the GPU.
            readings, note = {}, INTERRUPTED
        wall, source = stopped - begun.started, first_line(begun.source)
        idle = _Idle(result.execution_count, source, wall, cpu, not result.success, note)
        self._forgotten += len(self._cells) == KEPT
        worked = any(reading.worked for reading in readings.values())
        if not worked and wall <= self.above:
            self._cells.append(idle)
            return
        cell = idle.timing()
        if worked:
            cell = _with_gpu(cell, begun.started, readings)
        self._cells.append(cell)
        self._tell(cell, begun.source)

    def _failed(self, error: Exception) -> None:
        """Our failure: one line, and the user's cells go on without us."""
        print(
            f"%cudatime: cells are timed no longer ({text.named(error)}); "
            "'%cudatime on' begins anew"
        )


def _with_gpu(cell: CellTiming, started: float, readings: dict[int, Reading]) -> CellTiming:
    """``cell`` with what the devices did, judged as the timer itself judges it."""
    wall = max(reading.finished for reading in readings.values()) - started
    timing = summarize([Lap(wall, cell.host, cell.cpu, 0.0, readings)])
    return replace(
        cell,
        wall=wall,
        gpu=None if timing.gpu is None else timing.gpu.median,
        per_device={ordinal: sample.median for ordinal, sample in timing.per_device.items()},
        gpu_at_most=timing.gpu is not None and timing.gpu_at_most,
        used_gpu=True,
        note=timing.gpu_note if timing.gpu is None else cell.note,
    )
