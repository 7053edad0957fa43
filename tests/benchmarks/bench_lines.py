"""``%%cudatime --lines``: what it costs beside line_profiler."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from statistics import median

from tests.benchmarks.row import Row

#: Passes of a loop of lines that do next to nothing, and of those with a line of a millisecond.
SHORT, LONG = 20_000, 100
ROUNDS = 7


def rows() -> Iterator[Row]:
    """The rows. Needs a GPU: the cost is that of one device in use."""
    found = _measure()
    plain, short = found["none"]
    note = f"the same lines without; CPU time, the median of {ROUNDS} in turns"
    yield Row("--lines, lines of 1 ms", found["ours"][0], plain, note, 1.02)
    ours, theirs = ((found[way][1] - short) / (2 * SHORT) for way in ("ours", "line_profiler"))
    yield Row("--lines, what it costs a line", ours, theirs, "line_profiler, which knows no GPU")


def _measure() -> dict[str, tuple[float, float]]:
    """Return the CPU seconds of the two loops by way to trace.

    Of lines of a millisecond: by the lines' own time, as a CPU's clock changes by more than
    tracing takes.
    """
    import torch

    torch.ones(1, device="cuda")
    ways = ("none", "ours", "line_profiler")
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, times in found.items():
            times.append((_traced(way, _long), _traced(way, _short)))
    return {
        way: (median(long for long, _ in times), median(short for _, short in times))
        for way, times in found.items()
    }


def _traced(way: str, loop: Callable[[], float]) -> float:
    took: list[float] = []

    def run() -> None:
        took.append(loop())

    if way == "ours":
        from tests.support.line_cells import measured

        assert measured("run()", (loop,), run=run).lines is not None
    elif way == "line_profiler":
        import line_profiler

        line_profiler.LineProfiler(loop).runcall(run)
    else:
        run()
    return took[0]


#: What takes about a millisecond to hash.
_BYTES = bytes(1_700_000)
#: CPU seconds that each long line took itself.
_own: list[float] = []


def _hash() -> None:
    begun = time.thread_time()
    hashlib.sha256(_BYTES)
    _own.append(time.thread_time() - begun)


def _long() -> float:
    _own.clear()
    begun = time.thread_time()
    for _ in range(LONG // 4):
        _hash()
        _hash()
        _hash()
        _hash()
    return (time.thread_time() - begun) * LONG * 1e-3 / sum(_own)


def _short() -> float:
    x = 0
    begun = time.thread_time()
    for i in range(SHORT):
        x = i
    del x
    return time.thread_time() - begun
