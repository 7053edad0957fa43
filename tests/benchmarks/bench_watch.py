"""``%gpu watch``: what its thread costs the cells that run beside it, while everything changes."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks.row import Row
from tests.support.kernels import Kernel, python_environment
from tests.virtual_gpu import Scenario, environment
from tests.virtual_gpu.world import World

_DEVICES = 4
#: The share of a cell's time that the panel may cost.
_LIMIT = 0.01
#: Seconds between two looks.
_EVERY = 1.0
#: How often the loop runs alone, and beside the panel, in turns.
_TURNS = 7


def rows() -> Iterable[Row]:
    """Measure a loop of Python and a loop of launches in a kernel, in turns."""
    variables = environment(Scenario(devices=_DEVICES))
    with tempfile.TemporaryDirectory() as folder:
        kernel = Kernel(python_environment(variables), Path(folder), fresh=True)
        over = threading.Event()
        changing = threading.Thread(target=_change, args=(World.current(variables), over))
        try:
            kernel.run("%load_ext gpumagic\nfrom tests.benchmarks.bench_watch import measure")
            changing.start()
            for name in ("Python", "launches"):
                found = kernel.value(f"measure(get_ipython(), {name!r})", timeout=300)
                yield from _rows(name, found)
        finally:
            over.set()
            if changing.ident is not None:
                changing.join()
            kernel.close()


def _change(world: World, over: threading.Event) -> None:
    """Change what the panel shows more often than it looks: it never sleeps."""
    while not over.wait(0.2):
        for index in range(_DEVICES):
            load = random.randint(0, 100)
            world.set_gpu(index, utilization=load, power=70 + 6 * load)


def _rows(name: str, found: dict[str, float]) -> Iterable[Row]:
    """Return the rows of a loop.

    The bar is for what a look costs. The whole loop's times have none: they vary by more than one
    per cent where other processes use the machine.
    """
    beside = f"%gpu watch beside a loop of {name}, {_DEVICES} devices"
    yield Row.at_most(
        f"{beside}: a look",
        found["look"],
        _EVERY,
        _LIMIT,
        note="CPU time of the thread and what the loop lost, in turns with it alone; "
        "the time between two looks; all figures change",
    )
    note = f"the loop beside the panel; the loop alone; the best of {_TURNS} each, in turns"
    for clock, what in (("cpu", "CPU time of the process"), ("wall", "the wall clock")):
        yield Row.shown(f"{beside}: {what}", found[f"beside {clock}"], found[clock], note=note)


def measure(ip: Any, name: str) -> dict[str, float]:
    """Return seconds: what a look costs beside a loop, and the best loops alone and beside it.

    A look's are CPU seconds of its thread and of the loop's: on a busy machine one per cent of the
    wall clock would be lost in the noise.
    """
    import time

    import torch

    from gpumagic.magics.gpu import watch

    small = torch.ones(8, device="cuda")

    def python(count: int) -> None:
        total = 0
        for i in range(count):
            total += i & 3

    def launches(count: int) -> None:
        for _ in range(count):
            small.add_(1)
        torch.cuda.synchronize()

    loop = python if name == "Python" else launches
    count = 1000
    while (once := _once(loop, count)[0]) < 0.2:
        count *= 2
    count = round(count * 2 / once)  # two seconds: two looks
    threads, loops = [], []
    alone: list[tuple[float, float, float]] = []
    beside: list[tuple[float, float, float]] = []
    for _ in range(_TURNS):
        alone.append(_once(loop, count))
        ip.run_line_magic("gpu", "watch")
        current = watch.of(ip)
        clock = time.pthread_getcpuclockid(current._thread.ident)
        before, seen = time.clock_gettime(clock), len(current.samples)
        beside.append(_once(loop, count))
        looks = max(len(current.samples) - seen, 1)
        threads.append((time.clock_gettime(clock) - before) / looks)
        loops.append((beside[-1][0] - alone[-1][0]) / looks)
        ip.run_line_magic("gpu", "watch off -q")
    # What the loop itself loses may be less than the noise, but not less than nothing.
    look = statistics.median(threads) + max(statistics.median(loops), 0.0)
    best = {"cpu": 1, "wall": 2}
    return {
        "look": look,
        **{clock: min(run[place] for run in alone) for clock, place in best.items()},
        **{f"beside {clock}": min(run[place] for run in beside) for clock, place in best.items()},
    }


def _once(loop: Any, count: int) -> tuple[float, float, float]:
    """Return the CPU seconds of the thread and of the process, and seconds by the clock."""
    import time

    clocks = (time.thread_time, time.process_time, time.perf_counter)
    started = [clock() for clock in clocks]
    loop(count)
    thread, process, wall = (clock() - at for clock, at in zip(clocks, started, strict=True))
    return thread, process, wall
