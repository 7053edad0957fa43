"""A clock of this process's own, by which a test measures the same on every machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def virtual_clock() -> Iterator[None]:
    """Lets `time.perf_counter` and the virtual GPU go by what this process does.

    A launch takes what `World.set_launch_cost` says, a sleep or a wait for the GPU exactly its
    time, and reading the clock half a microsecond; all else takes none, however long the machine is
    at it. `time.thread_time` is the same without the sleeps.
    For one thread at a time: another's timeouts, and asyncio's timers, go by the real clock.

    Raises:
        LookupError: this process does not run on a virtual GPU.
    """
    try:
        turn = ctypes.CDLL(None).virtual_gpu_clock
    except AttributeError:
        raise LookupError("this process does not run on a virtual GPU") from None
    before = turn(1)
    try:
        yield
    finally:
        turn(before)
