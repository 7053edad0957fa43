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
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gpumagic
from tests.hardware import work
from tests.hardware.record import Figure
from tests.support import captures, forks
from tests.support.kernels import Kernel

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

SETUP = """
import ctypes, json, os, subprocess, sys, time
from time import perf_counter
found = {}
def step(name, code):
    begin = perf_counter()
    value = code()
    found[name] = round(1e3 * (perf_counter() - begin), 4)
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


@pytest.fixture
def ones(torch: Any, warmed: None) -> Iterator[Any]:
    yield torch.ones(16, device="cuda").add_(1)
    torch.cuda.synchronize()


# ---- what calls cost, and waits ----


def test_what_calls_cost(torch: Any, ones: Any, figure: Figure) -> None:
    cuda, stream, side = torch.cuda, torch.cuda.current_stream(), torch.cuda.Stream()
    event, other = (cuda.Event(enable_timing=True) for _ in range(2))
    event.record()
    other.record()
    cuda._sleep(1)
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


def test_sleep_then_kernel(torch: Any, ones: Any, cycles: float, figure: Figure) -> None:
    """40 ms of the host and then 45 of the GPU: 85 is at most an upper bound."""
    with gpumagic.cudatime() as timed:
        time.sleep(0.04)
        torch.cuda._sleep(int(0.045 * cycles))
    figure("40 ms of sleep, 45 of a kernel", str(timed))
    assert timed.gpu is None or timed.gpu_at_most or timed.gpu.median < 0.05


def test_graph_replay(torch: Any, ones: Any, figure: Figure) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            ones.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    figure("us: a replay of 100 kernels, the host", cost(graph.replay, 50))
    pairs = [work.by_events(torch, graph.replay) for _ in range(9)]
    ours = gpumagic.cudatime(graph.replay, max_time=0.5)
    figure("the same: seconds by events; ours", (statistics.median(pairs), str(ours)))
    assert ours.gpu is not None
    assert ours.gpu.best <= 1.2 * max(pairs)


# ---- first uses, clocks, NVML: in processes of their own, one by one ----

FIRST_USES = """
import torch
step("is_available", torch.cuda.is_available)
step("init", torch.cuda.init)
free, total = step("mem_get_info: a context", torch.cuda.mem_get_info)
found["bytes: context, at most"] = total - free
x = step("first tensor", lambda: torch.empty(1024, 1024, device="cuda"))
wait = torch.cuda.synchronize
for name, code in {"fill_": lambda: x.fill_(1), "add_": lambda: x.add_(1), "x @ x": lambda: x @ x,
                   "_sleep": lambda: torch.cuda._sleep(1)}.items():
    for time in ("first", "second"):
        step(f"{name}, {time}", lambda: (code(), wait()))
free = torch.cuda.mem_get_info()[0]
side = step("first Stream()", torch.cuda.Stream)
found["bytes: all streams"] = free - torch.cuda.mem_get_info()[0]
import gpumagic
def timed():
    with gpumagic.cudatime():
        pass
free = torch.cuda.mem_get_info()[0]
step("our first timed block", timed)
found["bytes: our first timed block"] = free - torch.cuda.mem_get_info()[0]
wait()
with torch.cuda.stream(side):
    torch.cuda._sleep(400_000_000)
step("a kernel's first launch beside a busy stream", x.cosh_)
found["the other stream was still busy"] = not side.query()
flags, active = ctypes.c_uint(), ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
found["flags of the context"] = flags.value
"""


def test_first_uses(figure: Figure) -> None:
    """The first context, kernels, product and streams, and whether a first launch waits."""
    found = ask(FIRST_USES, PYTORCH_NVML_BASED_CUDA_CHECK="0")
    figure("ms: first uses", found)
    assert found["x @ x, second"] < 1000


CLOCKS = """
import pynvml as nv
nv.nvmlInit()
handle = nv.nvmlDeviceGetHandleByIndex(0)
def clock():
    return (nv.nvmlDeviceGetClockInfo(handle, 1), nv.nvmlDeviceGetClockInfo(handle, 2),
            nv.nvmlDeviceGetCurrentClocksEventReasons(handle))
found["without a context"] = clock()
import torch
torch.ones(1, device="cuda")
found["with a context"] = clock()
torch.cuda._sleep(1)
torch.cuda.synchronize()
time.sleep(1)
found["after 1 s"] = clock()
events = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
for event in events:
    event.record()
    torch.cuda._sleep(2_000_000)
torch.cuda.synchronize()
found["2e6 cycles each, back to back"] = [
    round(a.elapsed_time(b), 4) for a, b in zip(events, events[1:])]
found["with work"] = clock()
"""


def test_clocks_after_idle(figure: Figure) -> None:
    figure("clocks in MHz, of the SMs and the memory, and reasons", found := ask(CLOCKS))
    assert found["with work"][0] >= found["without a context"][0] > 0


NVML = """
import pynvml as nv
step("init", nv.nvmlInit)
handle = step("first handle", lambda: nv.nvmlDeviceGetHandleByIndex(0))
for name in ("Name UUID MemoryInfo PowerUsage UtilizationRates EnforcedPowerLimit MigMode "
             "PersistenceMode ComputeMode ComputeRunningProcesses TotalEnergyConsumption").split():
    try:
        code = lambda: getattr(nv, "nvmlDeviceGet" + name)(handle)
        found["answer: " + name] = step(name, code)
        step(name + ", again", code)
    except nv.NVMLError as error:
        found[name] = str(error)
library, call = ctypes.CDLL("libnvidia-ml.so.1"), "nvmlDeviceGetComputeRunningProcesses"
found["functions"] = {name: hasattr(library, name) for name in (
    call, call + "_v2", call + "_v3", "nvmlDeviceGetRunningProcessDetailList",
    "nvmlDeviceGetConfComputeMemSizeInfo")}
count, room = ctypes.c_uint(32), (ctypes.c_ubyte * 4096)(*[0xAA] * 4096)
if hasattr(library, call + "_v3"):
    answer = getattr(library, call + "_v3")(handle, ctypes.byref(count), room)
    written = len(bytes(room).rstrip(b"\\xaa"))
    each = written / max(count.value, 1)
    found["_v3: answer, processes, bytes of each"] = (answer, count.value, each)
step("shutdown", nv.nvmlShutdown)
step("init again", nv.nvmlInit)
step("handle again", lambda: nv.nvmlDeviceGetHandleByIndex(0))
"""


def test_what_nvml_costs(torch: Any, ones: Any, figure: Figure) -> None:
    """While this process has a context: its own entry in the list is one of those counted."""
    figure("ms: NVML", found := ask(NVML))
    sizes = found.get("_v3: answer, processes, bytes of each", (0, 0, 0))
    assert sizes[1] == 0 or sizes[2] in (24, 32)


# ---- sessions, captures, keep ----

SESSIONS = """
import gpumagic
gpumagic.devices()
def count():
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.islink(f"/proc/self/fd/{fd}")]
    return sum(name.startswith("/dev/nvidia") for name in names)
found["open device files"] = count()
try:
    from tests.virtual_gpu import World
    found["open device files"] += World.current().sessions(os.getpid())
except LookupError:
    pass
"""


def test_no_session_stays_open(figure: Figure) -> None:
    """A GPU that is held by a session of NVML cannot be reset, nor its MIG mode be changed."""
    found = ask(SESSIONS)["open device files"]
    figure("open device files after a look at the devices", found)
    assert found == 0


@pytest.mark.parametrize("name", captures.ENDS)
def test_what_ends_another_threads_capture(torch: Any, name: str, figure: Figure) -> None:
    found = captures.ends(torch, name)
    figure(f"{name} ends a capture elsewhere, when asked globally, by thread, relaxed", found)
    assert found == captures.ENDS[name]


@pytest.mark.parametrize(
    ("first", "cell"),
    [("", "pass"), ("", "with __import__('gpumagic').cudatime(): pass"), ("%cudatime on", "pass")],
    ids=["nothing", "cudatime()", "%cudatime on"],  # the first is the test of the test
)
def test_a_capture_elsewhere_survives(
    torch: Any, run_cell: Callable[..., Any], figure: Figure, first: str, cell: str
) -> None:
    run_cell(first)
    run_cell("pass")
    with captures.capture_elsewhere(torch):
        shown = run_cell(cell).text
    figure(f"a capture elsewhere, {first or cell} meanwhile: our words", shown)


def test_keep_waits_for_other_streams(
    kernel: Callable[..., Kernel], cycles: float, figure: Figure
) -> None:
    """A copy on a side stream, behind 1 s of work, is in what ``--keep`` brings back."""
    fresh = kernel()
    fresh.run(
        "import torch; w, new = torch.zeros(4).cuda(), torch.ones(4).cuda()\n"
        "side = torch.cuda.Stream(); torch.cuda._sleep(1); torch.cuda.synchronize()\n"
        "def work():\n    with torch.cuda.stream(side):\n"
        f"        torch.cuda._sleep({int(cycles)})\n        w.copy_(new)"
    )
    early = fresh.value("(work(), w.cpu()[0].item(), torch.cuda.synchronize())[1]")
    fresh.run("w.zero_(); torch.cuda.synchronize(); work()")
    fresh.run("%gpu off --restart --keep w")
    figure("read at once (0: too early), and kept", (early, kept := fresh.value("w[0].item()")))
    assert kept == 1.0
