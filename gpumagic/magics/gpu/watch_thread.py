"""The thread of ``%gpu watch``: it looks at the devices while cells run, and keeps what it saw.

It asks NVML alone, by a session of its own. What CUDA's driver says of this process is read between
cells, in the main thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpumagic.cells.hooks import CellHook, CellHooks, first_line
from gpumagic.cuda import driver
from gpumagic.cuda.sample_log import RECENT, SampleLog, differ
from gpumagic.cuda.sampler import Sampler
from gpumagic.results.watch import CellSpan, UtilizationSample, WatchHistory
from gpumagic.results.watch_panel import WatchPanel
from gpumagic.system import text

#: At most so many cells are recorded; the oldest go first.
_CELLS = 1000
#: Seconds between two looks while nothing changes: while a cell runs, and between cells.
_SLOW, _SLOWEST = 3.0, 10.0
#: Seconds that the end waits for the thread, which may be within a call of NVML.
_PATIENCE = 2.0
#: A cell that another one runs.
_INNER = "inner"

#: Shows a MIME bundle in place of the one before.
Show = Callable[[Mapping[str, str]], None]


class Watch:
    """What one shell watches: the samples, the cells, and the thread while there is one."""

    def __init__(self, shell: Any, hooks: CellHooks) -> None:
        self._shell = shell
        self._hooks = hooks
        self._hook: CellHook[Any] = CellHook(after=self._after, before=self._before)
        #: Whether a panel has said where else it can be shown.
        self.has_hinted = False
        self._thread: _LookingThread | None = None
        self.forget()

    def forget(self) -> None:
        """Begin a new history."""
        self.log = SampleLog()
        self._cells: deque[CellSpan] = deque(maxlen=_CELLS)
        self._forgotten = 0

    @property
    def running(self) -> bool:
        """Whether the thread is looking."""
        return self._thread is not None and not self._thread.over

    def begin(
        self, show: Show | None, every: float, duration: float | None = None, hint: str = ""
    ) -> None:
        """Look from now on, and ``show`` each look; one that is running goes on in this place.

        Raises:
            DeviceError: NVML is missing or does not start.
        """
        sampler = Sampler()
        if self.running:
            self.end("moved to a later cell")
        else:
            self.forget()
        self._start(_LookingThread(self.log, sampler, show, every, duration, hint))

    def _start(self, thread: _LookingThread) -> None:
        """Look once, in this cell whose output the panel is to be, and start the thread."""
        thread.state = driver.state()
        try:
            thread.look()
        except BaseException:
            thread.close()
            raise
        self._thread = thread
        self._hooks.add(self._hook, running=True)
        atexit.register(self._at_exit)
        thread.start()

    def end(self, reason: str) -> None:
        """End the thread and say so in its panel. Nothing if there is none."""
        thread, self._thread = self._thread, None
        self._hooks.remove(self._hook)
        atexit.unregister(self._at_exit)
        if thread is not None and thread.pid == os.getpid():
            if thread.cell is not None:
                self._record(replace(thread.cell, end=time.time()))
            thread.end(reason)
            self._ended = thread

    def resume(self) -> None:
        """Go on after an `end` that was too early.

        Raises:
            DeviceError: NVML does not start again.
        """
        self._start(self._ended.again(Sampler()))

    def history(self) -> WatchHistory:
        """Return what was seen until now."""
        cells = tuple(self._cells)
        current = None if self._thread is None else self._thread.cell
        if current is not None:
            cells = (*cells, current)
        log = self.log
        return WatchHistory(
            log.devices, log.samples, cells, log.stride, self._forgotten, self.running
        )

    def _at_exit(self) -> None:
        self.end("the kernel has shut down")

    # --- around cells ----------------------------------------------------------------------------

    def _before(self, info: Any, outer: Any) -> Any:
        thread = self._thread
        if thread is None or thread.over:
            self._leave()
            return None
        if outer is not None:
            return _INNER
        number = self._shell.execution_count if info.store_history else None
        span = CellSpan(number, first_line(info.raw_cell), time.time())
        thread.begin_cell(span)
        return span

    def _after(self, begun: Any, result: Any) -> None:
        thread = self._thread
        if thread is None or begun is _INNER:
            return
        if begun is not None:
            number = begun.number if result.execution_count is None else result.execution_count
            end, failed = time.time(), not result.success
            self._record(replace(begun, number=number, end=end, failed=failed))
        thread.end_cell(driver.state())
        if thread.over:
            self._leave()

    def _record(self, cell: CellSpan) -> None:
        self._forgotten += len(self._cells) == self._cells.maxlen
        self._cells.append(cell)

    def _leave(self) -> None:
        """Remove what is left of a thread that has ended by itself."""
        self._hooks.remove(self._hook)
        atexit.unregister(self._at_exit)
        self._thread = None


class _LookingThread(threading.Thread):
    """Looks at the devices, adds to the log and shows a panel, until `end`.

    Where nothing has changed for a minute the looks are rarer and the panel stays as it is.
    """

    #: For debuggers: not to be stopped, nor waited for.
    pydev_do_not_trace = is_pydev_daemon_thread = True

    def __init__(
        self,
        log: SampleLog,
        sampler: Sampler,
        show: Show | None,
        every: float,
        duration: float | None,
        hint: str,
    ) -> None:
        super().__init__(name="gpumagic watch", daemon=True)
        self.pid = os.getpid()
        self._log = log
        self._sampler = sampler
        self._show = show
        self._every = every
        self._ends = None if duration is None else time.monotonic() + duration
        self._duration = duration
        self._hint = hint
        self._stop_now = threading.Event()
        self._wake = threading.Event()
        #: What CUDA's driver says of this process, as of the end of the last cell.
        self.state = driver.DriverState(loaded=False, initialized=False)
        #: The cell that is running, and how many have begun.
        self.cell: CellSpan | None = None
        self._begun = 0
        self._asleep = False
        #: The sample that later ones are compared with.
        self._reference: UtilizationSample | None = None
        #: Whether the thread has ended by itself.
        self.over = False

    def again(self, sampler: Sampler) -> _LookingThread:
        """Return a thread that goes on with the same panel."""
        left = None if self._ends is None else max(self._ends - time.monotonic(), 0.0)
        return _LookingThread(self._log, sampler, self._show, self._every, left, self._hint)

    # --- in the main thread ----------------------------------------------------------------------

    def begin_cell(self, cell: CellSpan) -> None:
        """Look soon: what a cell does is of interest."""
        self._begun += 1
        self.cell = cell
        if self._asleep:
            self._wake.set()

    def end_cell(self, state: driver.DriverState) -> None:
        """Note what CUDA's driver says of this process after a cell."""
        self.state = state
        self.cell = None

    def end(self, reason: str) -> None:
        """Stop, and say why in the panel."""
        self._stop_now.set()
        self._wake.set()
        self.join(_PATIENCE)
        if not self.over:
            self._say_ended(reason)

    def close(self) -> None:
        """Close the NVML session of a thread that was not started."""
        self._sampler.close()

    # --- in the thread ---------------------------------------------------------------------------

    def run(self) -> None:
        """Look until told to stop. Never raises: the panel says what went wrong."""
        try:
            while True:
                self._pause()
                if self._stop_now.is_set():
                    return
                if self._ends is not None and time.monotonic() >= self._ends:
                    self._end_by_itself(f"{self._duration:g} s are over")
                    return
                self.look()
        except Exception as error:  # NVML's, or of a front end that has gone
            self._end_by_itself(text.reason(error))
        finally:
            self._sampler.close()

    def _end_by_itself(self, reason: str) -> None:
        self.over = True
        self._say_ended(reason)

    def look(self) -> None:
        """Look once, and show what has changed."""
        begun = self._begun
        devices = self._sampler.read(self.state, lambda: self.cell is None and self._begun == begun)
        latest = self._log.recent[-1].time if self._log.recent else 0.0
        sample = self._log.add(max(time.time(), latest), devices)
        if self._reference is None or differ(self._reference, sample):
            self._reference = sample
        flat = sample.time - self._reference.time > RECENT
        shown, self._asleep = self._asleep, flat
        if not (flat and shown) and not self._stop_now.is_set():
            self._show_panel(None)

    def _show_panel(self, ended: str | None) -> None:
        if self._show is not None:
            panel = WatchPanel(
                self._log.devices,
                self._log.recent,
                self._interval(),
                self._asleep,
                ended,
                self._hint if ended is None else "",
            )
            self._show(panel._repr_mimebundle_())

    def _say_ended(self, reason: str) -> None:
        try:
            self._show_panel(reason)
        except Exception:  # what has ended it may be that nothing can be shown
            self._show = None

    def _interval(self) -> float:
        if not self._asleep:
            return self._every
        return max(self._every, _SLOW if self.cell is not None else _SLOWEST)

    def _pause(self) -> None:
        """Wait until the next look; a cell that begins shortens what is above the usual time."""
        interval = self._interval()
        if self._ends is not None:
            interval = min(interval, max(self._ends - time.monotonic(), 0.0))
        self._wake.clear()
        self._stop_now.wait(min(interval, self._every))
        if interval > self._every and not self._stop_now.is_set():
            self._wake.wait(interval - self._every)
