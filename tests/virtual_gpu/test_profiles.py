"""What a profile says that calls, first uses, waits and clocks take is what they take."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest
import torch

from tests.support import forks

from . import SLEEP_CYCLES_PER_SECOND, Scenario, World
from .profiles import PROFILES

cuda: Any = torch.cuda
nvml: Any = pynvml


@pytest.fixture
def used(virtual_gpu: World) -> Iterator[Any]:
    """A device on which all has been used once."""
    made: Any = torch.ones(16, device="cuda")
    event = cuda.Event(enable_timing=True)
    event.record()
    made.add_(1)
    cuda._sleep(1)
    cuda.synchronize()
    yield made
    cuda.synchronize()


def by_events(code: Callable[[], Any]) -> float:
    """Milliseconds."""
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    code()
    end.record()
    cuda.synchronize()
    return float(start.elapsed_time(end))


def work(seconds: float) -> Callable[[], None]:
    return lambda: cuda._sleep(int(seconds * SLEEP_CYCLES_PER_SECOND))


def test_a_call_takes_its_cpu_time(used: Any, clock: None, virtual_gpu: World) -> None:
    event = cuda.Event()
    event.record()
    cuda.synchronize()
    taken = {}
    for name in ("free", "t4"):
        virtual_gpu.set_profile(name)
        begin, cpu = time.perf_counter(), time.thread_time()
        for _ in range(100):
            event.query()
        taken[name] = time.perf_counter() - begin, time.thread_time() - cpu
    cost = 100e-6 * PROFILES["t4"].calls["EventQuery"]
    for free, t4 in zip(*taken.values(), strict=True):
        assert t4 - free >= 0.99 * cost


@pytest.mark.parametrize(
    ("name", "blocking", "spins"),
    [("free", False, False), ("h100", False, True), ("h100", True, False)],
)
def test_a_wait_spins_or_sleeps(
    used: Any, clock: None, virtual_gpu: World, name: str, blocking: bool, spins: bool
) -> None:
    virtual_gpu.set_profile(name)
    end = cuda.Event(blocking=blocking)
    work(0.05)()
    end.record()
    begin, cpu = time.perf_counter(), time.thread_time()
    end.synchronize()
    wall, cpu = time.perf_counter() - begin, time.thread_time() - cpu
    assert wall > 0.045
    assert (cpu > 0.9 * wall) == spins
    assert spins or cpu < 0.1 * wall


FIRST_USES = """
import json, time, torch
def taken(code):
    begin = time.perf_counter()
    code()
    return time.perf_counter() - begin
found = {"initialize": taken(torch.cuda.is_available)}
torch.cuda.init()
found["context"] = taken(torch.cuda.mem_get_info)
x = torch.empty(64, 64, device="cuda")
found["module"] = taken(lambda: x.fill_(1))
found["first_product"] = taken(lambda: x @ x)
found["again"] = taken(lambda: (torch.cuda.mem_get_info(), x.fill_(1), x @ x))
print(json.dumps(found))
"""


def test_first_uses(child_environment: Any) -> None:
    """The context is made by whatever call comes first."""
    variables = child_environment(Scenario(profile="t4"), {"PYTORCH_NVML_BASED_CUDA_CHECK": "0"})
    found = json.loads(forks.output([sys.executable, "-c", FIRST_USES], env=variables, fresh=True))
    for name in ("initialize", "context", "module", "first_product"):
        assert found[name] >= getattr(PROFILES["t4"], name) / 1e6
    assert found["again"] < min(found["module"], 0.1)


def test_the_clock_rises_with_work_and_falls_without(
    used: Any, clock: None, virtual_gpu: World
) -> None:
    virtual_gpu.set_profile("t4")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)

    def megahertz() -> int:
        return int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))

    time.sleep(10.1)
    assert megahertz() == 300
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 1
    assert 310 < by_events(work(0.3)) < 350  # 50 of it at about half the clock
    assert megahertz() == 1590
    assert by_events(work(0.05)) == pytest.approx(50, abs=0.1)
    nvml.nvmlShutdown()


def test_events_tell_apart_what_the_profile_says(
    used: Any, clock: None, virtual_gpu: World
) -> None:
    virtual_gpu.set_profile("t4")
    steps = by_events(work(0.00123)) / 0.0005
    assert steps == pytest.approx(round(steps), abs=1e-3)
