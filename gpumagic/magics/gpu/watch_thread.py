"""The thread of ``%gpu watch``: it samples the devices while cells run, and records the samples.

It calls NVML alone, by a session of its own. The state of CUDA's driver in this process is read
between cells, in the main thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.cells.records import CellRecords, first_line
from gpumagic.cuda import driver
from gpumagic.cuda.sampler import RECENT, SampleLog, Sampler, differ
from gpumagic.results.watch import CellSpan, UtilizationSample, WatchHistory
from gpumagic.results.watch_panel import WatchPanel
from gpumagic.system import text

#: The most cells that are recorded.
_CELLS = 1000
#: Seconds between two samples while nothing changes: while a cell runs, and between cells.
_SLOW, _SLOWEST = 3.0, 10.0
#: Seconds to wait for the thread to end, which may be within a call of NVML.
_JOIN_TIMEOUT = 2.0
#: A cell that another one runs.
_INNER = "inner"
#: Why a panel has ended where ``%gpu watch`` was called again while it was running.
MOVED = "moved to where '%gpu watch' was called again"

#: Shows a MIME bundle in place of the one before.
Show = Callable[[Mapping[str, str]], None]


class Watch:
    """The samples and the cells of one shell, and the thread while it runs."""

    def __init__(self, shell: Any, hooks: CellHooks) -> None:
        self._shell = shell
        self._hooks = hooks
        self._hook: CellHook[Any] = CellHook(after=self._after, before=self._before)
        #: Whether a panel has said where else it can be shown.
        self.has_hinted = False
        self._thread: _SamplingThread | None = None
        self.forget()

    def forget(self) -> None:
        """Begin a new history."""
        self.log = SampleLog()
        self._cells: CellRecords[CellSpan] = CellRecords(_CELLS)
        #: The cell that was running at the last `end`, which may go on under another panel.
        self._last: _RunningCell | None = None

    @property
    def running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and not self._thread.over

    def begin(self, show: Show | None, every: float, hint: str = "") -> None:
        """Begin to sample, and ``show`` each sample; a running panel moves here.

        Raises:
            DeviceError: NVML is missing, does not start, or lists no GPU.
        """
        sampler = Sampler()
        if self.running:
            self.end(MOVED)
        else:
            self.forget()
        self._start(_SamplingThread(self.log, sampler, show, every, hint))

    def _start(self, thread: _SamplingThread) -> None:
        """Take a sample in this cell, whose output the panel is, and start the thread."""
        thread.state = driver.state()
        try:
            thread.sample()
        except BaseException:
            thread.close()
            raise
        self._thread = thread
        self._hooks.add(self._hook, running=True)
        atexit.register(self._at_exit)
        thread.start()

    def end(self, reason: str, *, samples_lost: bool = False) -> None:
        """End the thread, with the reason in its panel. Nothing if there is none.

        ``samples_lost``: what ends it ends this shell's history, too.
        """
        thread, self._thread = self._thread, None
        self._hooks.remove(self._hook)
        atexit.unregister(self._at_exit)
        if thread is not None and thread.pid == os.getpid():
            if thread.cell is not None:
                span = replace(self._span(thread.cell), end=time.time())
                self._last = _RunningCell(thread.cell.info, span)
            thread.end(reason, samples_lost=samples_lost)
            self._ended = thread

    def resume(self) -> None:
        """Go on after an `end` that was too early.

        Raises:
            DeviceError: NVML does not start again.
        """
        self._start(self._ended.again(Sampler()))

    def history(self) -> WatchHistory:
        """Return the samples and cells until now."""
        cells = tuple(self._cells)
        if self._last is not None:
            cells = (*cells, self._last.span)
        current = None if self._thread is None else self._thread.cell
        if current is not None:
            cells = (*cells, self._span(current))
        log = self.log
        return WatchHistory(
            log.devices, log.samples, cells, log.stride, self._cells.dropped, self.running
        )

    def _at_exit(self) -> None:
        self.end("the kernel has shut down", samples_lost=True)

    # --- around cells ----------------------------------------------------------------------------

    def _before(self, info: Any, outer: Any) -> Any:
        thread = self._thread
        if thread is None or thread.over:
            self._leave()
            return None
        if outer is not None:
            if thread.cell is not None:  # IPython forgets its number when the inner cell ends
                thread.cell.span = self._span(thread.cell)
            return _INNER
        last, self._last = self._last, None
        if last is None or last.info is not info:
            if last is not None:
                self._cells.add(last.span)
            last = _RunningCell(info, CellSpan(None, first_line(info.raw_cell), time.time()))
        last.span = replace(last.span, end=None)
        thread.begin_cell(last)
        return last

    def _after(self, begun: Any, result: Any) -> None:
        thread = self._thread
        if thread is None or begun is _INNER:
            return
        if begun is None and thread.cell is not None:
            return  # an empty cell, which the running one has run
        if begun is not None:
            # IPython 9 numbers also cells outside the history.
            number = result.execution_count if result.info.store_history else None
            end, failed = time.time(), not result.success
            self._cells.add(replace(begun.span, number=number, end=end, failed=failed))
        thread.end_cell(driver.state())
        if thread.over:
            self._leave()

    def _span(self, cell: _RunningCell) -> CellSpan:
        """Return the span of a running cell, with its number where IPython has it.

        When a cell begins, IPython's counter is its number or, in later versions, the next one.
        """
        result = getattr(self._shell.displayhook, "exec_result", None)
        if result is None or result.info is not cell.info or not cell.info.store_history:
            return cell.span
        return replace(cell.span, number=result.execution_count)

    def _leave(self) -> None:
        """Remove the hooks of a thread that has ended by itself."""
        self._hooks.remove(self._hook)
        atexit.unregister(self._at_exit)
        self._thread = None


@dataclass
class _RunningCell:
    """A cell that is running, with IPython's `ExecutionInfo`, which identifies it."""

    info: Any
    span: CellSpan


class _SamplingThread(threading.Thread):
    """Samples the devices, adds to the log and updates a panel, until `end`.

    Where nothing has changed for a minute it samples less often and does not update the panel.
    """

    #: Debuggers do not stop the thread, nor wait for it.
    pydev_do_not_trace = is_pydev_daemon_thread = True

    def __init__(
        self,
        log: SampleLog,
        sampler: Sampler,
        show: Show | None,
        every: float,
        hint: str,
    ) -> None:
        super().__init__(name="gpumagic watch", daemon=True)
        self.pid = os.getpid()
        self._log = log
        self._sampler = sampler
        self._show = show
        self._every = every
        self._hint = hint
        self._stop_now = threading.Event()
        self._wake = threading.Event()
        #: The state of CUDA's driver in this process, at the end of the last cell.
        self.state = driver.DriverState(loaded=False, initialized=False)
        #: The cell that is running, and how many have begun.
        self.cell: _RunningCell | None = None
        self._begun = 0
        self._asleep = False
        #: The sample that later ones are compared with.
        self._reference: UtilizationSample | None = None
        #: Whether the thread has ended by itself.
        self.over = False

    def again(self, sampler: Sampler) -> _SamplingThread:
        """Return a thread that goes on with the same panel."""
        return _SamplingThread(self._log, sampler, self._show, self._every, self._hint)

    # --- in the main thread ----------------------------------------------------------------------

    def begin_cell(self, cell: _RunningCell) -> None:
        """Sample soon: a cell may change something."""
        self._begun += 1
        self.cell = cell
        if self._asleep:
            self._wake.set()

    def end_cell(self, state: driver.DriverState) -> None:
        """Store the state of CUDA's driver after a cell."""
        self.state = state
        self.cell = None

    def end(self, reason: str, *, samples_lost: bool) -> None:
        """Stop the thread, and show the reason in the panel."""
        self._stop_now.set()
        self._wake.set()
        self.join(_JOIN_TIMEOUT)
        if not self.over:
            self._say_ended(reason, samples_lost=samples_lost)

    def close(self) -> None:
        """Close the NVML session of a thread that was not started."""
        self._sampler.close()

    # --- in the thread ---------------------------------------------------------------------------

    def run(self) -> None:
        """Sample until `end`. Never raises: the panel shows an error."""
        try:
            while True:
                self._pause()
                if self._stop_now.is_set():
                    return
                self.sample()
        except Exception as error:  # NVML's, or of a front end that has gone
            self._end_by_itself(text.reason(error))
        finally:
            self._sampler.close()

    def _end_by_itself(self, reason: str) -> None:
        self.over = True
        self._say_ended(reason)

    def sample(self) -> None:
        """Take a sample, and update the panel if it has changed."""
        begun = self._begun
        devices = self._sampler.read(self.state, lambda: self.cell is None and self._begun == begun)
        latest = self._log.recent[-1].time if self._log.recent else 0.0
        latest_sample = self._log.add(max(time.time(), latest), devices)
        if self._reference is None or differ(self._reference, latest_sample):
            self._reference = latest_sample
        flat = latest_sample.time - self._reference.time > RECENT
        shown, self._asleep = self._asleep, flat
        if not (flat and shown) and not self._stop_now.is_set():
            self._show_panel()

    def _show_panel(self, ended: str | None = None, *, samples_lost: bool = False) -> None:
        if self._show is not None:
            panel = WatchPanel(
                self._log.devices,
                self._log.recent,
                self._interval(),
                self._asleep,
                ended,
                self._hint if ended is None else "",
                samples_lost,
            )
            self._show(panel._repr_mimebundle_())

    def _say_ended(self, reason: str, *, samples_lost: bool = False) -> None:
        try:
            self._show_panel(reason, samples_lost=samples_lost)
        except Exception:  # the cause of the end may be that nothing can be shown
            self._show = None

    def _interval(self) -> float:
        if not self._asleep:
            return self._every
        return max(self._every, _SLOW if self.cell is not None else _SLOWEST)

    def _pause(self) -> None:
        """Wait until the next sample; where that is late, a cell that begins ends the wait."""
        interval = self._interval()
        self._wake.clear()
        self._stop_now.wait(min(interval, self._every))
        if interval > self._every and not self._stop_now.is_set():
            self._wake.wait(interval - self._every)
