"""How long the threads of this process had to wait for a CPU, as Linux counts it."""

from __future__ import annotations

from pathlib import Path

#: A directory for each thread. In its ``schedstat`` are the thread's time on a CPU and its waiting
#: for one, in nanoseconds, and its number of slices.
_THREADS = Path("/proc/self/task")


def counters() -> dict[str, int]:
    """Return the nanoseconds that each thread has waited; empty where the system does not count."""
    found = {}
    try:
        threads = list(_THREADS.iterdir())
    except OSError:
        return {}
    for thread in threads:
        try:
            fields = (thread / "schedstat").read_bytes().split()
        except OSError:  # the thread has ended
            continue
        if len(fields) == 3 and all(map(bytes.isdigit, fields)) and int(fields[2]):
            found[thread.name] = int(fields[1])
    return found


def waited_since(before: dict[str, int]) -> float | None:
    """Return the seconds that the threads have waited since ``before`` (`counters`), added up.

    None where the system does not count it.
    """
    now = counters()
    if not (before and now):
        return None
    return sum(max(waited - before.get(thread, 0), 0) for thread, waited in now.items()) / 1e9
