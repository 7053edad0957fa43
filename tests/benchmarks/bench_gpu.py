"""``%gpu``, warm, with 8 devices: against the tools, and against the raw NVML calls."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.process import SHELL, reason, script, wall
from tests.benchmarks.row import Row
from tests.virtual_gpu import GPU, ExternalProcess, Scenario, environment

DEVICES = 8
ROUNDS = 7
#: Seconds that a call to a real driver is taken to last: the virtual one answers in a microsecond.
CALL = 50e-6

_GPU = (
    SHELL
    + """
from contextlib import redirect_stdout
from io import StringIO

import pynvml as nv

from tests.virtual_gpu import World

world = World.current()
ip.run_line_magic("load_ext", "gpumagic")


def timed(call, rounds=50):
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


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


cold = time.perf_counter()
show()
cold = time.perf_counter() - cold
show()
raw()
turns = [(timed(raw), timed(measure), timed(show)) for _ in range(5)]
raws, measures, shows = (statistics.median(column) for column in zip(*turns))
print(json.dumps({
    "cold": cold, "raw": raws, "measured": measures, "shown": shows,
    "raw calls": calls(raw), "calls": calls(measure),
}))
"""
)


def machine(**options: Any) -> dict[str, str]:
    """Eight devices, two of them in use by others."""
    scenario = Scenario(
        devices=[GPU(utilization=10 * index) for index in range(DEVICES)],
        processes=[ExternalProcess(i, 2**22 + i, (20 + i) * 2**30) for i in range(2)],
        **options,
    )
    return environment(scenario)


def rows() -> list[Row]:
    bin_ = Path(sysconfig.get_path("scripts"))
    env = machine()
    found = script(_GPU, env)
    slow = script(_GPU, machine(slow={"nvmlDevice*": CALL}))
    tools = {"gpustat": [str(bin_ / "gpustat")], "nvitop -1": [str(bin_ / "nvitop"), "-1"]}
    times: dict[str, list[float]] = {name: [] for name in tools}
    missing: dict[str, str] = {}
    for turn in range(ROUNDS + 1):
        for name, command in tools.items():
            if name in missing:
                continue
            try:
                taken = wall(command, env)
            except (OSError, RuntimeError) as error:
                missing[name] = reason(error)
                continue
            if turn:
                times[name].append(taken)
    where = f"{DEVICES} devices, warm, shown"
    return [
        *(Row.missing(name, why) for name, why in missing.items()),
        *(
            Row.at_most(
                f"%gpu against {name}",
                found["shown"],
                median(taken),
                1 / 20,
                note=f"{where}; the tool as a process, median of {ROUNDS}",
            )
            for name, taken in times.items()
            if taken
        ),
        Row.equal(
            "NVML calls of a warm %gpu",
            found["calls"],
            found["raw calls"],
            "calls",
            "8 a device: memory, use, temperature, power, limit, processes of 2 kinds, MIG",
        ),
        Row.at_most(
            "%gpu before display",
            slow["measured"],
            slow["raw"],
            1.5,
            note=f"the same NVML calls by hand, each made to last {CALL * 1e6:g} µs",
        ),
        Row.shown("… at no cost of NVML's", found["measured"], found["raw"], note="as they are"),
        Row.shown("%gpu with display", found["shown"], found["raw"], note="the same"),
        Row.shown("%gpu for the first time", found["cold"], found["raw"], note="the same, warm"),
    ]
