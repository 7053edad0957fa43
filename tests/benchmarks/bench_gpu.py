"""``%gpu``, warm, with 8 devices: its time against the tools', and its calls of NVML."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.benchmarks.process import SHELL, script, wall
from tests.benchmarks.row import Row, equal
from tests.virtual_gpu import GPU, ExternalProcess, Scenario, environment

DEVICES = 8
ROUNDS = 5
TOOLS = {"gpustat": ("gpustat",), "nvitop -1": ("nvitop", "-1")}

_GPU = (
    SHELL
    + """
from contextlib import redirect_stdout
from io import StringIO

import pynvml as nv

from tests.virtual_gpu import World

world = World.current()
ip.run_line_magic("load_ext", "gpumagic")


def calls(call):
    world.reset()
    call()
    return world.calls("nvml*")


# What a warm table needs of NVML and what may have changed since the last one; names, UUIDs and
# handles are known already.
nv.nvmlInit()
handles = [nv.nvmlDeviceGetHandleByIndex(i) for i in range(nv.nvmlDeviceGetCount())]


def raw():
    for handle in handles[: nv.nvmlDeviceGetCount()]:
        nv.nvmlDeviceGetMemoryInfo(handle, nv.nvmlMemory_v2)
        nv.nvmlDeviceGetUtilizationRates(handle)
        nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)
        nv.nvmlDeviceGetPowerUsage(handle)
        nv.nvmlDeviceGetEnforcedPowerLimit(handle)
        nv.nvmlDeviceGetComputeRunningProcesses(handle)
        nv.nvmlDeviceGetGraphicsRunningProcesses(handle)
        nv.nvmlDeviceGetMigMode(handle)


def measure():
    ip.run_line_magic("gpu", "-q")


def show():
    with redirect_stdout(StringIO()):
        ip.run_line_magic("gpu", "")


show()
times = []
for _ in range(30):
    started = time.perf_counter()
    show()
    times.append(time.perf_counter() - started)
seconds = statistics.median(times)
print(json.dumps({"seconds": seconds, "calls": calls(measure), "by hand": calls(raw)}))
"""
)


def rows() -> Iterator[Row]:
    found = script(_GPU, machine())
    scripts = Path(sysconfig.get_path("scripts"))
    for name, (program, *options) in TOOLS.items():
        command = [str(scripts / program), *options]
        times = [wall(command, machine()) for _ in range(ROUNDS + 1)][1:]
        note = f"{name} as a process, median of {ROUNDS}; {DEVICES} devices, ours warm and shown"
        yield Row(f"%gpu against {name}", found["seconds"], median(times), note, 1 / 20)
    each = "8 a device: memory, use, temperature, power, limit, processes of 2 kinds, MIG"
    yield equal("NVML calls of a warm %gpu", found["calls"], found["by hand"], each, "calls")


def machine() -> dict[str, str]:
    """Eight devices, two of them in use by others."""
    scenario = Scenario(
        devices=[GPU(utilization=10 * index) for index in range(DEVICES)],
        processes=[ExternalProcess(i, 2**22 + i, (20 + i) * 2**30) for i in range(2)],
    )
    return environment(scenario)
