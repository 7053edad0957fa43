"""Wait for what another thread or process does, or to be interrupted by it."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds: a safety net, not a measure; a machine may be slow.
PATIENCE = 400.0
#: An expression that lasts until it is interrupted; the code around it has ``time``. Python looks
#: for signals between the instructions of a program: one that comes between the last of them and
#: the system call of ``time.sleep(600)`` is noticed when that is over, ten minutes later.
UNTIL_INTERRUPTED = "any(time.sleep(0.01) for _ in iter(int, 1))"


def until(holds: Callable[[], object], describe: Callable[[], object] = lambda: "") -> None:
    """Wait until a condition is true.

    Raises:
        AssertionError: it never is; with what ``describe`` says then.
    """
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.01)
