"""How long the current thread had to wait for a CPU, as Linux counts it."""

from __future__ import annotations

import threading
from pathlib import Path

#: The thread's time on a CPU and its waiting for one, in nanoseconds, and its number of slices.
_FILE = Path("/proc/thread-self/schedstat")


class _Start(threading.local):
    """The counters when the current stretch of the thread began; at first, with the thread."""

    on_cpu = 0
    waited = 0


_START = _Start()


def begin() -> None:
    """Begin a stretch of the current thread."""
    _START.on_cpu, _START.waited = _counters() or (_START.on_cpu, _START.waited)


def ratio() -> float | None:
    """Return the time that the thread waited for each second on a CPU; then begin a new stretch.

    None where the system does not count it.
    """
    counters = _counters()
    if counters is None:
        return None
    on_cpu, waited = counters[0] - _START.on_cpu, counters[1] - _START.waited
    _START.on_cpu, _START.waited = counters
    return waited / on_cpu if on_cpu > 0 <= waited else None


def _counters() -> tuple[int, int] | None:
    try:
        fields = _FILE.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return None
    if len(fields) != 3 or not all(field.isdecimal() for field in fields):
        return None
    on_cpu, waited, slices = map(int, fields)
    return (on_cpu, waited) if slices else None
