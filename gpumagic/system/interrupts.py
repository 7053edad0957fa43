"""Let an interrupt wait for the end of a block."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_after() -> Iterator[None]:
    """Let an interrupt that arrives in the block take effect at its end.

    What the block starts has an owner by then. Only the main thread is interrupted, and a handler
    that is none of Python's stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    arrived: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *signaled: arrived.append(signaled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived:
        signal.raise_signal(signal.SIGINT)
