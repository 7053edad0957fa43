"""``%%cudatime --lines``: what it costs beside line_profiler."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from statistics import fmean, median

from tests.benchmarks.row import Row

#: Passes of a loop of lines that do next to nothing; and lines of a millisecond, so many that marks
#: are read, too.
SHORT, LONG = 20_000, 400
ROUNDS = 7
#: Seconds of wall time beyond its CPU time with which a line has lost the processor.
LOST = 50e-6


def rows() -> Iterator[Row]:
    """The rows. Needs a GPU: the cost is that of one device in use."""
    found = _measure()
    plain, short = found["none"]
    note = (
        f"the same lines without; CPU time where a line kept the processor, the least of {ROUNDS}"
    )
    yield Row("--lines, lines of 1 ms", found["ours"][0], plain, note, 1.02)
    ours, theirs = ((found[way][1] - short) / (2 * SHORT) for way in ("ours", "line_profiler"))
    yield Row("--lines, what it costs a line", ours, theirs, "line_profiler, which knows no GPU")


def _measure() -> dict[str, tuple[float, float]]:
    """Return the CPU seconds of a line of a millisecond, and of the short loop, by way to trace."""
    import torch

    torch.ones(1, device="cuda")
    ways = ("none", "ours", "line_profiler")
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, times in found.items():
            times.append((_traced(way, _long), _traced(way, _short)))
    return {
        way: (min(long for long, _ in times), median(short for _, short in times))
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
#: When each long line began and ended, by CPU time; and how much longer it was by wall time.
_times: list[tuple[float, float, float]] = []


def _hash() -> None:
    wall, begun = time.perf_counter(), time.thread_time()
    hashlib.sha256(_BYTES)
    ended = time.thread_time()
    _times.append((begun, ended, time.perf_counter() - wall - (ended - begun)))


def _long() -> float:
    """Return the CPU seconds of a line: those of tracing beside a line's own, which is 1 ms.

    A CPU's clock changes by more than tracing takes, and a process that has lost its processor
    finds its caches empty: such lines do not count.
    """
    _times.clear()
    for _ in range(LONG // 4):
        _hash()
        _hash()
        _hash()
        _hash()
    between = [
        begun - ended
        for (_, ended, lost), (begun, _, _) in itertools.pairwise(_times)
        if lost < LOST
    ]
    return 1e-3 + fmean(between)


def _short() -> float:
    x = 0
    begun = time.thread_time()
    for i in range(SHORT):
        x = i
    del x
    return time.thread_time() - begun
