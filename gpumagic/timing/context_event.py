"""An event behind all work of a device's context, on any stream, torch's or not.

Streams that another library has made cannot be listed. But from CUDA 12.5 on the driver records an
event behind everything in a context (``cuCtxRecordEvent``), by which it is known whether such a
stream was busy and when it finished. Only times of the GPU are compared: a delayed host delays no
event that was recorded on an idle device, and work is seen that finished before the host looked.
"""

from __future__ import annotations

import ctypes
from itertools import islice
from time import thread_time
from typing import Any, cast

from gpumagic.cuda import driver, torch_cuda

#: Seconds that an event behind an idle context is reached late at most: streams wait for each other
#: within a few microseconds.
_LATE = 20e-6
#: CPU seconds of this thread that a wait for an idle device takes at most, with a large margin.
_IDLE_WAIT = 2e-3


class ContextEvent:
    """The event behind all work, and behind it a timing event on a stream with no work of its own.

    Recording it takes two idle streams of torch's; `known` says whether it was recorded.
    """

    def __init__(self, ordinal: int) -> None:
        is_idle = cast(Any, torch_cuda.loaded())._C._CudaStreamBase.query
        idle = list(islice(filter(is_idle, reversed(torch_cuda.streams(ordinal))), 2))
        self._all: Any = _behind_everything(ordinal, idle[0]) if len(idle) == 2 else None
        self.known = self._all is not None
        if self.known:
            #: The stream that waits for the event, and the timing event on it.
            self.stream = idle[0]
            self.stream.wait_event(self._all)
            self.end = torch_cuda.timing_event(self.stream)
            #: A later event that waits for nothing: reached before `end` if the context is busy.
            self.later = torch_cuda.timing_event(idle[1])

    def finishes_last(self, start: Any, known: float) -> bool:
        """Return whether something was busy for longer than all work whose end is known.

        Once both events are reached. ``known``: seconds from ``start`` to the end of that work.
        """
        end, later = (start.elapsed_time(each) / 1e3 for each in (self.end, self.later))
        return bool(end > max(known, later) + _LATE)


def _behind_everything(ordinal: int, stream: Any) -> Any:
    """Return an event behind all current work of the device's context; None if there is none."""
    record = getattr(driver.loaded_library(), "cuCtxRecordEvent", None)
    if record is None:
        return None
    cuda = cast(Any, torch_cuda.loaded()).cuda
    event = cuda.Event()
    event.record(stream)  # makes it
    context = ctypes.c_void_p()
    with cuda.device(ordinal):
        driver.loaded_library().cuCtxGetCurrent(ctypes.byref(context))  # type: ignore[union-attr]
        done = record(context, ctypes.c_void_p(event.cuda_event)) == 0
    return event if done else None


def waited_long(ordinal: int) -> bool:
    """Wait for a device, and return whether it was busy, where `ContextEvent` cannot report it.

    CUDA polls while it waits, so the wait is as long as the CPU time that it takes. A thread held
    up by other processes or by Python's lock takes none.
    """
    before = thread_time()
    torch_cuda.synchronize(ordinal)
    return thread_time() - before > _IDLE_WAIT
