"""A mark behind all work of a device's context, in whichever stream and queued by whomever.

Streams that another library has made cannot be listed. But from CUDA 12.5 on the driver records an
event behind everything in a context (``cuCtxRecordEvent``), and the device itself then tells both
whether such a stream is at work and when it was done. The host's clock is not asked: a host that is
held up makes no event late that was recorded on an idle device.
"""

from __future__ import annotations

import ctypes
from itertools import islice
from time import thread_time
from typing import Any, cast

from gpumagic.cuda import driver, torch_cuda

#: So often an idle stream has something to do, and does it, before the context counts as at work.
_TURNS = 10
#: CPU seconds of this thread's that a wait for a device may take when there is nothing to wait for,
#: with a large margin.
_SPUN = 2e-3


class Mark:
    """The event behind everything, and behind it one that keeps time, on a stream with no work.

    To make it, at least two of torch's streams must be idle; `known` says whether it was made.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        is_idle = cast(Any, torch_cuda.loaded())._C._CudaStreamBase.query
        idle = list(islice(filter(is_idle, reversed(torch_cuda.streams(ordinal))), 2))
        self._all: Any = _behind_everything(ordinal, idle[0]) if len(idle) == 2 else None
        self.known = self._all is not None
        if self.known:
            #: The stream that waits, and the mark on it.
            self.stream, self._turn = idle
            self.stream.wait_event(self._all)
            self.end = torch_cuda.timing_event(self.stream)

    def outlives(self) -> bool:
        """Whether the context is at work while idle streams of its get done what they are given."""
        for _ in range(_TURNS):
            if self._all.query():
                return False
            torch_cuda.timing_event(self._turn).synchronize()
        return not self._all.query()


def _behind_everything(ordinal: int, stream: Any) -> Any:
    """An event behind all work that the device's context has now; None where there is no such."""
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
    """Wait for a device; whether there was something to wait for, where `Mark` cannot tell.

    CUDA asks again and again while it waits, so the wait is as long as the CPU time that it takes.
    A thread that is held up, by other processes or by Python's lock, takes none.
    """
    before = thread_time()
    torch_cuda.synchronize(ordinal)
    return thread_time() - before > _SPUN
