"""``%gpu watch``: what a look of its thread costs beside a cell, while everything changes."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pynvml

from gpumagic.render.units import seconds
from tests.benchmarks.row import Row
from tests.support.kernels import Kernel, child_environment
from tests.virtual_gpu import Scenario, World

_DEVICES = 4
#: Seconds between two looks, and the share of them that a look may cost.
_EVERY, _LIMIT = 1.0, 0.01
_TURNS = 5


def rows() -> Iterator[Row]:
    variables = child_environment(Scenario(devices=_DEVICES))
    with tempfile.TemporaryDirectory() as folder:
        kernel = Kernel(variables, Path(folder), fresh=True)
        over = threading.Event()
        changing = threading.Thread(target=_change, args=(World.current(variables), over))
        changing.start()
        try:
            kernel.run("%load_ext gpumagic\nfrom tests.benchmarks.bench_watch import by_hand, look")
            own = kernel.value("by_hand()")
            took = kernel.value("look(get_ipython())")
        finally:
            over.set()
            changing.join()
            kernel.close()
    note = "the time between two looks; ours: CPU time of the thread and what the loop lost, "
    note += f"without {seconds(own)} for the same figures of NVML by hand"
    yield Row(f"%gpu watch, a look at {_DEVICES} devices", max(took - own, 0), _EVERY, note, _LIMIT)


def _change(world: World, over: threading.Event) -> None:
    """Change what the panel shows more often than it looks: it never sleeps."""
    while not over.wait(0.2):
        for index in range(_DEVICES):
            load = random.randint(0, 100)
            world.set_gpu(index, utilization=load, power=70 + 6 * load)


def look(ip: Any) -> float:
    """Return the CPU seconds of a look beside a loop of Python, run alone and with it in turns.

    CPU time: on a busy machine one per cent of the clock's would be lost in the noise.
    """
    from gpumagic.magics.gpu import watch

    count = 1_000_000
    count = round(count * 2 * _EVERY / _loop(count))  # two looks
    looks = []
    for _ in range(_TURNS):
        alone = _loop(count)
        ip.run_line_magic("gpu", "watch")
        current = watch.of(ip)
        clock = time.pthread_getcpuclockid(current._thread.ident)
        before, seen = time.clock_gettime(clock), len(current.samples)
        beside = _loop(count)
        number = max(len(current.samples) - seen, 1)
        thread = time.clock_gettime(clock) - before
        ip.run_line_magic("gpu", "watch off -q")
        # What the loop loses may be less than the noise, but not less than nothing.
        looks.append((thread + max(beside - alone, 0.0)) / number)
    return median(looks)


def by_hand() -> float:
    """Return the CPU seconds that NVML takes for the figures of a look."""
    pynvml.nvmlInit()
    handles = [*map(pynvml.nvmlDeviceGetHandleByIndex, range(_DEVICES))]
    begun = time.thread_time()
    for handle in handles:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
        pynvml.nvmlDeviceGetUtilizationRates(handle)
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        pynvml.nvmlDeviceGetPowerUsage(handle)
    taken = time.thread_time() - begun
    pynvml.nvmlShutdown()
    return taken


def _loop(count: int) -> float:
    begun = time.thread_time()
    total = 0
    for i in range(count):
        total += i & 3
    return time.thread_time() - begun
