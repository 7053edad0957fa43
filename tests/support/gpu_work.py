"""Fixtures of the tests of GPU time: torch with contexts, and GPU work of known duration."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def gpu_work(virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Functions that keep a device busy for so many seconds; contexts on cuda:0 and cuda:1.

    All by the virtual clock, so that a measured time is the same on every machine: a launch takes
    `bottleneck_cells.LAUNCH`, what a kernel takes is known, and Python between them takes nothing.
    So does the CPU: a machine whose processor is taken away counts that as the thread's own time.
    """
    import threading

    import sympy  # noqa: F401 - torch imports it at times, and it changes the warning filters
    import torch

    from gpumagic.timing import waits
    from tests.timing import bottleneck_cells
    from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND, virtual_clock

    def sleep(seconds: float, device: int = 0) -> None:
        with torch.cuda.device(device):
            torch.cuda._sleep(int(seconds * SLEEP_CYCLES_PER_SECOND))

    def on_side(seconds: float, device: int = 0, priority: int = 0) -> None:
        with torch.cuda.stream(torch.cuda.Stream(device, priority=priority)):
            sleep(seconds, device)

    def from_thread(seconds: float) -> None:
        thread = threading.Thread(target=on_side, args=(seconds,))
        thread.start()
        thread.join()

    for ordinal in (0, 1):
        sleep(0, ordinal)  # a kernel's first launch takes longer
        torch.cuda.synchronize(ordinal)
    monkeypatch.setattr(waits, "thread_time", time.perf_counter)
    virtual_gpu.hold_clocks()
    virtual_gpu.set_launch_cost(bottleneck_cells.LAUNCH)
    with virtual_clock():
        yield SimpleNamespace(torch=torch, sleep=sleep, on_side=on_side, from_thread=from_thread)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)


class KnownWork:
    """Launches kernels, and knows when each began and ended."""

    def __init__(self, gpu_work: Any) -> None:
        self._work = gpu_work
        self._free: dict[Any, float] = defaultdict(float)
        #: By CUDA ordinal.
        self.intervals: dict[int, list[tuple[float, float]]] = defaultdict(list)

    def kernel(self, seconds: float, stream: Any = None, device: int = 0) -> None:
        """Launch a kernel: it begins now, or when the one before it on its stream has ended."""
        cuda = self._work.torch.cuda
        stream = stream or cuda.current_stream(device)
        with cuda.stream(stream):
            self._work.sleep(seconds, stream.device_index)
        key = stream.device_index, stream.cuda_stream
        begin = max(time.perf_counter(), self._free[key])
        self._free[key] = begin + seconds
        self.intervals[stream.device_index].append((begin, begin + seconds))

    def busy(self, *ordinals: int) -> float:
        """Seconds for which one of the devices worked."""
        total, until = 0.0, 0.0
        for begin, end in sorted(each for i in ordinals for each in self.intervals[i]):
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total
