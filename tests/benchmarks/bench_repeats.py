"""``%%cudatime`` repeated: how soon there is an answer, how good it is, what the peers say."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.benchmarks.row import Row

#: CuPy's ``%gpu_timeit`` makes so many repeats, and so many to warm up.
CUPY_REPEATS, CUPY_WARM_UP = 10_000, 10
#: A cell whose last expression takes long to compile, behind so many seconds of GPU work.
BUSY = 0.3
SLOW_TO_COMPILE = "lambda: [" + "busy + 1, " * 20_000 + "]"


def rows() -> Iterable[Row]:
    """The rows of the repeats' benchmarks. Needs a GPU, real or virtual."""
    import torch

    torch.ones(1, device="cuda")
    yield from _bound()
    yield from _answer(torch)
    yield from _small(torch)
    yield from _side_stream(torch)
    yield from _compiling(torch)


def _cycles(seconds: float) -> int:
    from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND

    return int(seconds * SLEEP_CYCLES_PER_SECOND)


def _bound() -> Iterator[Row]:
    import gpumagic
    from tests.timing import bottleneck_cells as cells
    from tests.virtual_gpu import World

    namespace = cells.namespace(_cycles(1))
    world = World.current()
    world.set_launch_cost(cells.LAUNCH)
    right = sum(
        gpumagic.cudatime(code, globals=namespace, max_time=0.5).bound == limit
        for code, limit in cells.ALL.values()
    )
    world.set_launch_cost(0.0)
    yield Row.equal(
        "cells whose limit, GPU or host, is told right", right, 20, "cells", "constructed so"
    )


def _by_pairs(torch: Any, code: Callable[[], Any], repeats: int, warm_up: int) -> list[float]:
    """CuPy's loop: an event pair around each run, and a wait after it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for run in range(warm_up + repeats):
        start.record()
        code()
        end.record()
        end.synchronize()
        if run >= warm_up:
            times.append(start.elapsed_time(end) / 1e3)
    return times


def _do_bench(torch: Any, code: Callable[[], Any], most: int = 1_000_000) -> float:
    """The method of triton's ``do_bench``: pairs queued behind each other, a cache flush each.

    ``most`` limits the runs, for code whose time it does not see.
    """
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    code()
    torch.cuda.synchronize()
    estimate = statistics.mean(_by_pairs(torch, code, 5, 0))
    for _ in range(min(most, max(1, int(0.025 / max(estimate, 1e-6))))):
        code()
    count = min(most, max(1, int(0.1 / max(estimate, 1e-6))))
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for start, end in pairs:
        flush.zero_()
        start.record()
        code()
        end.record()
    torch.cuda.synchronize()
    return statistics.mean(start.elapsed_time(end) / 1e3 for start, end in pairs)


def _seconds(code: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    value = code()
    return time.perf_counter() - begun, value


def _answer(torch: Any) -> Iterator[Row]:
    """How long it takes until there is an answer for a cell of 1 ms."""
    from torch.utils.benchmark import Timer

    import gpumagic

    def cell() -> None:
        torch.cuda._sleep(_cycles(1e-3))

    ours, timing = _seconds(lambda: gpumagic.cudatime(cell, max_time=3.0))
    cupy, pairs = _seconds(lambda: _by_pairs(torch, cell, CUPY_REPEATS, CUPY_WARM_UP))
    note = f"10,000 repeats; ours {timing.gpu.median * 1e3:.4g} ms after {timing.repeat} repeats"
    yield Row.at_most("an answer for a 1 ms cell", ours, cupy, 0.1, note=note)
    known = "the median of 10,000 repeats"
    yield Row.within(
        "what it says", timing.gpu.median, statistics.median(pairs), 0.98, 1.02, note=known
    )
    timer = Timer("cell()", globals={"cell": cell})
    for name, method in (
        ("do_bench's method", lambda: _do_bench(torch, cell)),
        (
            "torch.utils.benchmark, adaptive_autorange",
            lambda: timer.adaptive_autorange().median,
        ),
    ):
        taken, said = _seconds(method)
        yield Row.shown(
            f"{name}, time to an answer", taken, cupy, note=f"it says {said * 1e3:.4g} ms"
        )


def _small(torch: Any) -> Iterator[Row]:
    """An operation of about 20 µs: ours, events by hand, and source text executed per run."""
    import gpumagic

    cycles = _cycles(20e-6)
    namespace = {"torch": torch, "cycles": cycles}
    source = "torch.cuda._sleep(cycles)"

    def by_hand() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(200):
            torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / 200

    ours, hand, executed = [], [], []
    for _ in range(5):
        timing = gpumagic.cudatime(source, globals=namespace, max_time=1.0)
        ours.append(timing.gpu.median)
        hand += [by_hand() for _ in range(9)]
        pairs = _by_pairs(torch, lambda: exec(source, namespace), 200, CUPY_WARM_UP)
        executed.append(statistics.median(pairs))
    reference = statistics.median(hand)
    yield Row.at_most(
        "an operation of 20 µs, repeated",
        statistics.median(ours),
        reference,
        1.02,
        note="hand-written events around 200 runs",
    )
    yield Row.shown(
        "CuPy's method: the source executed per run",
        statistics.median(executed),
        reference,
        note="hand-written events around 200 runs",
    )


def _side_stream(torch: Any) -> Iterator[Row]:
    """50 ms on a side stream that is not synchronised, repeated."""
    import gpumagic

    true = 0.05
    side = torch.cuda.Stream()

    def cell() -> None:
        with torch.cuda.stream(side):
            torch.cuda._sleep(_cycles(true))

    timing = gpumagic.cudatime(cell, max_time=1.0)
    yield Row.within(
        "50 ms on an unjoined side stream, repeated",
        timing.gpu.median,
        true,
        0.98,
        1.02,
        note="true duration",
    )
    torch.cuda.synchronize()
    # It sees the host's few µs: tens of thousands of runs, by how fast that is.
    said = _do_bench(torch, cell, most=20)
    torch.cuda.synchronize()
    yield Row.shown("do_bench's method, the same", said, true, note="true duration")


def _compiling(torch: Any) -> Iterator[Row]:
    """A last expression that takes long to compile is not in the wall time."""
    from tests.support.shells import shell

    busy = f"busy = 1\ntorch.cuda._sleep({_cycles(BUSY)}); torch.cuda.synchronize()\n"
    with shell() as ip:
        ip.user_ns["torch"] = torch
        ours, plain, theirs = [], [], []
        for _ in range(3):
            for source, walls in ((SLOW_TO_COMPILE, ours), ("lambda: busy", plain)):
                ip.run_cell(f"%%cudatime -q -v timing\n{busy}{source};").raise_error()
                walls.append(ip.user_ns["timing"].wall.median)
            theirs.append(_walls_of_time(ip, busy + SLOW_TO_COMPILE))
    reference = statistics.median(plain)
    note = "the same cell with a short last expression"
    yield Row.within(
        "wall time, the last expression slow to compile",
        statistics.median(ours),
        reference,
        0.99,
        1.01,
        note=note,
    )
    yield Row.shown("%%time's wall time, the same", statistics.median(theirs), reference, note=note)


def _walls_of_time(ip: Any, cell: str) -> float:
    """What ``%%time`` says, in seconds."""
    import re

    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        ip.run_cell(f"%%time\n{cell};").raise_error()
    number, unit = re.search(r"Wall time: ([\d.]+) (\S+)", captured.stdout).groups()
    return (
        float(number) * {"ns": 1e-9, "μs": 1e-6, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1}[unit]
    )
