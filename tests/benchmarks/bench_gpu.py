"""``%gpu``, warm, with 8 devices: its time against the tools', and its calls of NVML."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from gpumagic.render.units import seconds
from tests.benchmarks.process import script, wall
from tests.benchmarks.row import Row
from tests.virtual_gpu import GPU, ExternalProcess, Scenario, environment

DEVICES = 8
ROUNDS = 5
#: What NVML itself takes, which no tool can save.
OWN = "NVML's own"
TOOLS = {"gpustat": ("gpustat",), "nvitop -1": ("nvitop", "-1")}

_GPU = """
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


# What a table needs of NVML, which is closed after it: an open one blocks resets of a GPU.
def raw():
    nv.nvmlInit()
    nv.nvmlSystemGetDriverVersion()
    for handle in map(nv.nvmlDeviceGetHandleByIndex, range(nv.nvmlDeviceGetCount())):
        nv.nvmlDeviceGetUUID(handle)
        nv.nvmlDeviceGetName(handle)
        nv.nvmlDeviceGetCudaComputeCapability(handle)
        nv.nvmlDeviceGetMemoryInfo(handle, nv.nvmlMemory_v2)
        nv.nvmlDeviceGetUtilizationRates(handle)
        nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)
        nv.nvmlDeviceGetPowerUsage(handle)
        nv.nvmlDeviceGetEnforcedPowerLimit(handle)
        nv.nvmlDeviceGetComputeRunningProcesses(handle)
        nv.nvmlDeviceGetGraphicsRunningProcesses(handle)
        nv.nvmlDeviceGetMigMode(handle)
    nv.nvmlShutdown()


def measure():
    ip.run_line_magic("gpu", "-q")


def show():
    with redirect_stdout(StringIO()):
        ip.run_line_magic("gpu", "")


show()
counts = {"calls": calls(measure), "by hand": calls(raw)}
print(json.dumps({"seconds": median(show, 30), "NVML's own": median(raw, 9), **counts}))
"""


def rows() -> Iterator[Row]:
    found = script(_GPU, machine())
    scripts = Path(sysconfig.get_path("scripts"))
    for name, (program, *options) in TOOLS.items():
        command = [str(scripts / program), *options]
        times = [wall(command, machine()) for _ in range(ROUNDS + 1)][1:]
        note = f"{name} as a process, median of {ROUNDS}; {DEVICES} devices, ours warm and shown, "
        note += f"and without {seconds(found[OWN])} for the same calls of NVML by hand"
        yield Row(
            f"%gpu against {name}", found["seconds"] - found[OWN], median(times), note, 1 / 20
        )
    each = "a session, 12 a device: identity, memory, use, temperature, power, processes, MIG"
    calls = found["calls"], found["by hand"]
    yield Row("NVML calls of a %gpu", *calls, each, 1.0, 1.0, "calls")


def machine() -> dict[str, str]:
    """Eight devices, two of them in use by others."""
    scenario = Scenario(
        devices=[GPU(utilization=10 * index) for index in range(DEVICES)],
        processes=[ExternalProcess(i, 2**22 + i, (20 + i) * 2**30) for i in range(2)],
    )
    return environment(scenario)
