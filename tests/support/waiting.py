"""Wait for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds: a safety net, not a measure; a machine may be slow.
PATIENCE = 400.0


def until(holds: Callable[[], object], describe: Callable[[], object] = lambda: "") -> None:
    """Wait until a condition is true.

    Raises:
        AssertionError: it never is; with what ``describe`` says then.
    """
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.01)
