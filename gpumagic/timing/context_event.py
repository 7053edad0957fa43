"""An event behind all work of a device's context, on any stream, torch's or not.

Streams that another library has made cannot be listed. But from CUDA 12.5 on the driver records an
event behind everything in a context (``cuCtxRecordEvent``), by which it is known whether such a
stream is busy and when it finished. The host's clock is not used: a delayed host delays no event
that was recorded on an idle device.
"""

from __future__ import annotations

import ctypes
from itertools import islice
from time import thread_time
from typing import Any, cast

from gpumagic.cuda import driver, torch_cuda

#: Events that are reached on an idle stream before the context counts as busy.
_EVENTS = 10
#: CPU seconds of this thread that a wait for an idle device takes at most, with a large margin.
_IDLE_WAIT = 2e-3


class ContextEvent:
    """The event behind all work, and behind it a timing event on a stream with no work of its own.

    Recording it takes two idle streams of torch's; `known` says whether it was recorded.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        is_idle = cast(Any, torch_cuda.loaded())._C._CudaStreamBase.query
        idle = list(islice(filter(is_idle, reversed(torch_cuda.streams(ordinal))), 2))
        self._all: Any = _behind_everything(ordinal, idle[0]) if len(idle) == 2 else None
        self.known = self._all is not None
        if self.known:
            #: The stream that waits for the event, and the timing event on it.
            self.stream, self._idle_stream = idle
            self.stream.wait_event(self._all)
            self.end = torch_cuda.timing_event(self.stream)

    def is_busy(self) -> bool:
        """Return whether the context is busy although events on its idle streams are reached."""
        for _ in range(_EVENTS):
            if self._all.query():
                return False
            torch_cuda.timing_event(self._idle_stream).synchronize()
        return not self._all.query()


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
