"""What the first hour on a card must answer: each question writes its figures into the record.

Times are in milliseconds or, where it says so, microseconds. What is asserted is what the package,
or the virtual GPU, relies on; all else is only written down, for `tests.virtual_gpu.profiles`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.hardware.record import Figure
from tests.support import captures, forks

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

SETUP = """
import json, time
found = {}
def step(name, code):
    begin = time.perf_counter()
    value = code()
    found[name] = round(1e3 * (time.perf_counter() - begin), 4)
    return value
"""
END = "\nprint(json.dumps(found, default=str))\n"


def ask(code: str, **env: str) -> Any:
    """What ``code`` has put into ``found``, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", SETUP + code + END]
    return json.loads(forks.output(command, env={**os.environ, **env}).splitlines()[-1])


def cost(code: Callable[[], Any], times: int = 300) -> dict[str, float]:
    """Microseconds of the first call, the least, the median, the 95th percentile; CPU's median."""
    walls, cpus = [], []
    for _ in range(times):
        cpu, begin = time.thread_time(), time.perf_counter()
        code()
        end, after = time.perf_counter(), time.thread_time()
        walls.append(end - begin)
        cpus.append(after - cpu)
    ranked = sorted(walls)
    figures = (walls[0], ranked[0], ranked[times // 2], ranked[times * 95 // 100])
    named = zip(("first", "least", "median", "95 %"), figures, strict=True)
    return {k: round(1e6 * v, 2) for k, v in (*named, ("CPU", statistics.median(cpus)))}


@pytest.mark.usefixtures("warmed")
def test_what_calls_cost(torch: Any, figure: Figure) -> None:
    cuda, stream, side = torch.cuda, torch.cuda.current_stream(), torch.cuda.Stream()
    event, other = (cuda.Event(enable_timing=True) for _ in range(2))
    event.record()
    other.record()
    ones = torch.ones(16, device="cuda")
    calls: dict[str, Callable[[], Any]] = {
        "nothing": lambda: None,
        "query of an event": event.query,
        "query of a stream": stream.query,
        "query of another stream": side.query,
        "record": lambda: event.record(stream),
        "a new event, recorded": lambda: cuda.Event(enable_timing=True).record(stream),
        "elapsed time": lambda: event.elapsed_time(other),
        "wait for an event": event.synchronize,
        "launch: add_": lambda: ones.add_(1),
        "launch: _sleep": lambda: cuda._sleep(1),
        "launch and wait": lambda: (ones.add_(1), cuda.synchronize()),
        "wait for an idle device": cuda.synchronize,
        "item": lambda: ones[0].item(),
        "mem_get_info": cuda.mem_get_info,
        "memory_stats": lambda: torch._C._cuda_memoryStats(0),
        "a stream of torch's": lambda: torch._C._CudaStreamBase(priority=0),
    }
    found = {}
    for name, code in calls.items():
        cuda.synchronize()
        found[name] = cost(code)
        figure(f"us: {name}", found[name])
    assert found["query of an event"]["median"] < 100, "a look after every cell makes many"


FIRST_USES = """
import torch
step("is_available", torch.cuda.is_available)
step("init", torch.cuda.init)
free, total = step("mem_get_info: a context", torch.cuda.mem_get_info)
found["bytes: context, at most"] = total - free
x = step("first tensor", lambda: torch.empty(1024, 1024, device="cuda"))
for name, code in {"fill_": lambda: x.fill_(1), "x @ x": lambda: x @ x}.items():
    for turn in ("first", "second"):
        step(f"{name}, {turn}", lambda: (code(), torch.cuda.synchronize()))
free = torch.cuda.mem_get_info()[0]
step("first Stream()", torch.cuda.Stream)
found["bytes: all streams"] = free - torch.cuda.mem_get_info()[0]
"""


def test_first_uses(figure: Figure) -> None:
    """The first context, kernel, product and streams."""
    figure("ms: first uses", found := ask(FIRST_USES, PYTORCH_NVML_BASED_CUDA_CHECK="0"))
    assert found["x @ x, second"] < 1000


NVML = """
import pynvml as nv
step("init", nv.nvmlInit)
handle = step("first handle", lambda: nv.nvmlDeviceGetHandleByIndex(0))
asked = {"ClockInfo": (nv.NVML_CLOCK_SM,)}  # of a GPU that is idle
for name in ("Name UUID MemoryInfo PowerUsage UtilizationRates EnforcedPowerLimit MigMode "
             "ClockInfo ComputeMode ComputeRunningProcesses TotalEnergyConsumption").split():
    try:
        code = lambda: getattr(nv, "nvmlDeviceGet" + name)(handle, *asked.get(name, ()))
        found["answer: " + name] = step(name, code)
        step(name + ", again", code)
    except nv.NVMLError as error:
        found[name] = str(error)
step("shutdown", nv.nvmlShutdown)
"""


def test_what_nvml_costs(figure: Figure) -> None:
    figure("ms: NVML", found := ask(NVML))
    assert "answer: UUID" in found


@pytest.mark.parametrize("name", captures.ENDS)
def test_what_ends_another_threads_capture(torch: Any, name: str, figure: Figure) -> None:
    found = captures.ends(torch, name)
    figure(f"{name} ends a capture elsewhere, when asked globally, by thread, relaxed", found)
    assert found == captures.ENDS[name]
