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
                yield Row.at_most(
                    f"%gpu watch beside a loop of {name}, {_DEVICES} devices: a look",
                    found,
                    _EVERY,
                    _LIMIT,
                    note="CPU time of the thread and what the loop lost, in turns with it alone; "
                    "the time between two looks; all figures change",
                )
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


def measure(ip: Any, name: str, turns: int = 7) -> float:
    """Return the CPU seconds that a look costs beside a loop: of its thread and of the loop.

    Not of the wall clock: on a busy machine one per cent would be lost in the noise.
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
    while (once := _once(loop, count)) < 0.2:
        count *= 2
    count = round(count * 2 / once)  # two seconds: two looks
    threads, loops = [], []
    for _ in range(turns):
        alone = _once(loop, count)
        ip.run_line_magic("gpu", "watch")
        current = watch.of(ip)
        clock = time.pthread_getcpuclockid(current._thread.ident)
        before, seen = time.clock_gettime(clock), len(current.log.samples)
        beside = _once(loop, count)
        looks = max(len(current.log.samples) - seen, 1)
        threads.append((time.clock_gettime(clock) - before) / looks)
        loops.append((beside - alone) / looks)
        ip.run_line_magic("gpu", "watch off -q")
    # What the loop itself loses may be less than the noise, but not less than nothing.
    return statistics.median(threads) + max(statistics.median(loops), 0.0)


def _once(loop: Any, count: int) -> float:
    import time

    started = time.thread_time()
    loop(count)
    return time.thread_time() - started
