"""An event behind all work of a device's context, on any stream, torch's or not.

Streams that another library has made cannot be listed. But from CUDA 12.5 on the driver records an
event behind everything in a context (``cuCtxRecordEvent``), by which it is known whether such a
stream was busy and when it finished. Only times of the GPU are compared: a delayed host delays no
event that was recorded on an idle device, and work is seen that finished before the host looked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import islice
from time import thread_time
from typing import Any, cast

from gpumagic.cuda import driver, torch_cuda

#: Seconds that an event behind an idle context is reached late at most: streams wait for each other
#: within a few microseconds.
LATE = 20e-6
#: CPU seconds of this thread that a wait for an idle device takes at most, with a large margin.
_IDLE_WAIT = 2e-3


class ContextEvent:
    """The event behind all work, and behind it a timing event on a stream with no work of its own.

    `record` takes two idle streams of torch's; then `known` says whether it was recorded. Made
    beforehand, so that recording takes little time: work that ends before it leaves no sign.
    """

    def __init__(self, ordinal: int) -> None:
        self._is_idle: Any = cast(Any, torch_cuda.loaded())._C._CudaStreamBase.query
        self._streams = torch_cuda.streams(ordinal)[::-1]
        self._record = _of_context(ordinal, "cuCtxRecordEvent")
        first, second = self._streams[:2]
        self._all = cast(Any, torch_cuda.loaded()).cuda.Event()
        self._all.record(first)  # makes it
        #: The stream that waits for the event, and the timing event on it.
        self.stream, self.end = first, torch_cuda.timing_event(first)
        #: A later event that waits for nothing: reached before `end` if the context is busy.
        self.later = torch_cuda.timing_event(second)
        self.known = False

    def record(self) -> ContextEvent:
        """Record the events behind all current work, and return this object."""
        idle = list(islice(filter(self._is_idle, self._streams), 2))
        self.known = len(idle) == 2 and self._record(self._all)
        if self.known:
            self.stream = idle[0]
            self.stream.wait_event(self._all)
            self.end.record(self.stream)
            self.later.record(idle[1])
        return self

    def finishes_last(self, start: Any, known: float) -> bool:
        """Return whether something was busy for longer than all work whose end is known.

        Once both events are reached. ``known``: seconds from ``start`` to the end of that work.
        """
        end, later = self._times(start)
        return end > max(known, later) + LATE

    def idle_from(self, start: Any) -> float:
        """Return the seconds from ``start`` after which the context was surely idle.

        Where nothing has finished last: work that ended before the events were recorded is not
        seen, and they are recorded late where the host was held up.
        """
        return max(self._times(start))

    def _times(self, start: Any) -> tuple[float, float]:
        return start.elapsed_time(self.end) / 1e3, start.elapsed_time(self.later) / 1e3


def make_context_wait(ordinal: int, event: Any) -> bool:
    """Make future work on all streams of a device's context wait for ``event``, torch's or not.

    Return whether it does (``cuCtxWaitEvent``, from CUDA 12.5 on).
    """
    return _of_context(ordinal, "cuCtxWaitEvent")(event)


def _of_context(ordinal: int, name: str) -> Callable[[Any], bool]:
    """Return a driver's function of a device's context and an event; it returns its success."""
    library: Any = driver.loaded_library()
    function = getattr(library, name, None)
    context = ctypes.c_void_p()
    if function is None:
        return lambda event: False
    with cast(Any, torch_cuda.loaded()).cuda.device(ordinal):
        library.cuCtxGetCurrent(ctypes.byref(context))
    return lambda event: bool(function(context, ctypes.c_void_p(event.cuda_event)) == 0)


def waited_long(ordinal: int) -> bool:
    """Wait for a device, and return whether it was busy, where `ContextEvent` cannot report it.

    CUDA polls while it waits, so the wait is as long as the CPU time that it takes. A thread held
    up by other processes or by Python's lock takes none.
    """
    before = thread_time()
    torch_cuda.synchronize(ordinal)
    return thread_time() - before > _IDLE_WAIT
