"""The thread of ``%gpu watch``: it samples the devices while cells run, and keeps the samples.

It calls NVML alone, by a session of its own. The state of CUDA's driver in this process is read
between cells, in the main thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.cuda import device_table, driver, nvml, processes
from gpumagic.errors import DeviceError
from gpumagic.magics.gpu.watch_history import (
    CellSpan,
    WatchHistory,
    WatchPanel,
    WatchSample,
)
from gpumagic.results.devices import Device
from gpumagic.selection import soft_off
from gpumagic.system import text

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo

#: The most samples, an hour at one each second, and the most cells.
_SAMPLES, _CELLS = 3600, 1000
#: Seconds to wait for the thread to end, which may be within a call of NVML.
_JOIN_TIMEOUT = 2.0

#: Shows a panel in place of the one before.
Show = Callable[[WatchPanel], None]


class Watch(CellHook[CellSpan]):
    """The samples and the cells of one shell, and the thread while it runs."""

    def __init__(self, hooks: CellHooks) -> None:
        self._hooks = hooks
        self._thread: _SamplingThread | None = None
        self._forget()

    def _forget(self) -> None:
        """Begin a new history."""
        self.samples: deque[WatchSample] = deque(maxlen=_SAMPLES)
        self._cells: deque[CellSpan] = deque(maxlen=_CELLS)
        #: The cell that runs.
        self.current: CellSpan | None = None
        #: The error that has ended the thread; empty without one.
        self.failure = ""

    @property
    def running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, show: Show, every: float) -> None:
        """Begin to sample, and ``show`` each sample; a running panel moves here.

        Raises:
            DeviceError: NVML is missing, does not start, or lists no GPU.
        """
        session = nvml.Session()
        try:
            if not session.count():
                raise DeviceError("there is no GPU to watch: NVML lists none on this machine")
            if self._thread is not None and self.running:
                self._thread.end("moved to where '%gpu watch' was called again")
            else:
                self._forget()
            thread = _SamplingThread(self, session, show, every)
            thread.sample()  # in this cell, whose output the panel is
        except BaseException:
            session.close()
            raise
        self._thread = thread
        thread.start()
        self._hooks.add(self, running=True)
        atexit.register(self.end, "the process has shut down")

    def end(self, reason: str) -> None:
        """End the thread, with the reason in its panel; nothing if there is none."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end(reason)
        self._hooks.remove(self)
        atexit.unregister(self.end)
        if self.current is not None:
            self._cells.append(replace(self.current, end=time.time()))
            self.current = None

    def history(self) -> WatchHistory:
        """Return the samples and cells until now."""
        current = () if self.current is None else (self.current,)
        return WatchHistory(tuple(self.samples), (*self._cells, *current), self.running)

    def before(self, info: ExecutionInfo, outer: object) -> CellSpan | None:
        if outer is not None:
            return None  # a cell that another one runs
        if not self.running:  # by an error, which the panel shows
            self.end(self.failure)
            return None
        self.current = CellSpan(None, time.time())
        return self.current

    def after(self, begun: CellSpan | None, result: Any) -> None:
        if begun is None or self._thread is None:
            return
        # Of a cancelled cell there is no result.
        number = result.execution_count if result and result.info.store_history else None
        failed = result is None or not result.success
        self._cells.append(replace(begun, number=number, end=time.time(), failed=failed))
        self._thread.state = driver.state()
        self.current = None


class _SamplingThread(threading.Thread):
    """Samples the devices, and updates the panel where something has changed, until `end`."""

    #: Debuggers do not stop the thread, nor wait for it.
    pydev_do_not_trace = is_pydev_daemon_thread = True

    def __init__(self, watch: Watch, session: nvml.Session, show: Show, every: float) -> None:
        super().__init__(name="gpumagic watch", daemon=True)
        self._watch = watch
        self._session = session
        self._show = show
        self._every = every
        self._stop_now = threading.Event()
        #: The state of CUDA's driver after the last cell.
        self.state = driver.state()
        #: The sample that the panel shows, without its time.
        self._shown: WatchSample | None = None

    def end(self, reason: str) -> None:
        """Stop the thread, and show the reason in the panel: in the main thread."""
        alive = self.is_alive()
        self._stop_now.set()
        if alive:
            self.join(_JOIN_TIMEOUT)
            self._show_end(reason)

    # --- in the thread ---------------------------------------------------------------------------

    def run(self) -> None:
        """Sample until `end`. Never raises: the panel shows an error."""
        try:
            while not self._stop_now.wait(self._every):
                self.sample()
        except Exception as error:  # NVML's, or of a front end that has gone
            self._watch.failure = text.reason(error)
            self._show_end(self._watch.failure)
        finally:
            self._session.close()

    def sample(self) -> None:
        """Take a sample, and update the panel if it has changed."""
        before = self._watch.current  # a cell may initialise CUDA
        found = device_table.compose(self._session.read(), os.environ, self.state)
        if before or self._watch.current:
            found = tuple(map(_certain, found))
        kept = tuple(replace(device, processes=None) for device in found)
        sample = WatchSample(time.time(), kept, soft_off.is_closed())
        self._watch.samples.append(sample)
        shown, self._shown = self._shown, replace(sample, time=0.0)
        if self._shown != shown:
            self._show(WatchPanel(sample))

    def _show_end(self, reason: str) -> None:
        # The cause of the end may be that nothing can be shown.
        with suppress(Exception):
            self._show(WatchPanel(self._watch.samples[-1], reason))


def _certain(device: Device) -> Device:
    """Return the device without figures that depend on whether this process has a context now."""
    listed = device.processes
    complete = listed is not None and processes.in_first_pid_namespace()
    if complete or any(process.own for process in listed or ()):
        return device
    return replace(device, memory_own=None, memory_others=None)
