"""What calls and first uses take on a real card: the profiles that ``VGPU_PROFILE`` names.

`H100` is by what an H200 in a virtual machine answered (torch 2.11, CUDA 13.0, driver 580) where it
was asked, else by what others published. `T4`, as in Colab, is an estimate.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

VARIABLE = "VGPU_PROFILE"


@dataclass(frozen=True)
class Profile:
    """Microseconds, megahertz and mebibytes; the fields of ``struct vg_profile`` say what of.

    `calls`: CPU time of a call by its name without ``cuda`` or ``cu``, or by NVML's whole name.
    `launch`: of whatever is submitted to a stream: a kernel, a copy, a product, a graph.
    """

    calls: Mapping[str, float] = field(default_factory=dict)
    launch: float = 0
    initialize: float = 0
    context: float = 0
    further_context: float = 0
    module: float = 0
    first_launch: float = 0
    first_product: float = 0
    latency: float = 2
    seen_late: float = 0
    resolution: float = 0
    event: float = 0
    attach: float = 0
    clock_ramp: float = 0
    clock_fall: float = 0
    idle_clock: int = 1980
    full_clock: int = 1980
    context_mib: float = 500
    stream_mib: float = 0
    spins: int = 0


#: Of the driver and the runtime; what Python and torch need for a call is theirs.
_H100_CALLS: dict[str, float] = {
    "EventQuery": 0.2,
    "StreamQuery": 0.3,
    "StreamIsCapturing": 0.2,
    "StreamGetCaptureInfo": 0.2,
    "ThreadExchangeStreamCaptureMode": 0.1,
    "EventCreate": 1.5,
    "EventCreateWithFlags": 1.5,
    "EventDestroy": 0.9,
    "EventRecord": 1.5,
    "EventRecordWithFlags": 1.5,
    "CtxRecordEvent": 2,
    "EventElapsedTime": 0.5,
    "EventSynchronize": 0.4,
    "StreamSynchronize": 2,
    "DeviceSynchronize": 3,
    "CtxSynchronize": 3,
    "StreamWaitEvent": 1,
    "MemGetInfo": 3,
    "Malloc": 110,
    "HostAlloc": 110,
    "MallocHost": 110,
    "Free": 60,
    "StreamCreate": 20,
    "StreamCreateWithFlags": 20,
    "StreamCreateWithPriority": 20,
    "GraphInstantiate": 200,
    "GraphInstantiateWithFlags": 200,
    "ModuleLoadData": 5_000,
    "ModuleLoadDataEx": 5_000,
}
#: What a look pays that comes once a second or so: most figures are kept for some milliseconds.
_H100_NVML: dict[str, float] = {
    "nvmlInit_v2": 8_700,
    "nvmlInitWithFlags": 8_700,
    "nvmlShutdown": 3_300,
    "nvmlDeviceGetName": 40,
    "nvmlDeviceGetUUID": 14,
    "nvmlDeviceGetMemoryInfo": 16,
    "nvmlDeviceGetMemoryInfo_v2": 13,
    "nvmlDeviceGetPowerUsage": 3_500,
    "nvmlDeviceGetUtilizationRates": 2_100,
    "nvmlDeviceGetTemperature": 470,
    "nvmlDeviceGetTemperatureV": 470,
    "nvmlDeviceGetComputeRunningProcesses": 31,
    "nvmlDeviceGetComputeRunningProcesses_v2": 31,
    "nvmlDeviceGetComputeRunningProcesses_v3": 31,
    "nvmlDeviceGetMigMode": 390,
    "nvmlDeviceGetClockInfo": 420,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 410,
    "nvmlDeviceGetCurrentClocksEventReasons": 410,
    "nvmlDeviceGetTotalEnergyConsumption": 2_800,
}
H100 = Profile(
    calls=_H100_CALLS | _H100_NVML,
    launch=3,
    initialize=200_000,
    context=125_000,
    further_context=20_000,
    module=8_000,
    first_launch=50,
    first_product=77_000,
    latency=3,
    seen_late=1.5,
    resolution=0.032,
    attach=6_600,
    idle_clock=345,
    full_clock=1980,
    context_mib=527,
    stream_mib=0.55,
    spins=1,
)
T4 = replace(
    H100,
    calls=_H100_NVML
    | {name: 2.5 * cost for name, cost in _H100_CALLS.items()}
    | {"DeviceSynchronize": 10, "CtxSynchronize": 10, "StreamSynchronize": 10, "MemGetInfo": 20},
    launch=6,
    initialize=200_000,
    context=100_000,
    module=10_000,
    first_launch=100,
    first_product=250_000,
    latency=6,
    seen_late=3,
    resolution=0.5,
    clock_ramp=50_000,
    clock_fall=10_000_000,
    idle_clock=300,
    full_clock=1590,
    context_mib=180,
    stream_mib=1 / 16,
)
PROFILES = {
    "free": Profile(),
    "h100": H100,
    "t4": T4,
    # As long as the events on a pool's 32 streams took an H200.
    "slow events": replace(H100, event=44),
}


def profile(name: str | None = None) -> Profile:
    """The one of that name. Default: what the environment says, else ``free``."""
    return PROFILES[name or os.environ.get(VARIABLE) or "free"]


def nanoseconds(profile: Profile) -> dict[str, int]:
    """The fields of ``struct vg_profile``."""
    fields = asdict(profile)
    for name in ("calls", "launch"):
        del fields[name]
    units = {name: fields.pop(name) for name in ("idle_clock", "full_clock", "spins")}
    units |= {
        f"{name}_bytes": round(fields.pop(f"{name}_mib") * 2**20) for name in ("context", "stream")
    }
    return units | {name: round(1000 * value) for name, value in fields.items()}


def costs(profile: Profile) -> dict[str, int]:
    """Nanoseconds by the call's whole name."""
    return {
        whole: round(1000 * cost)
        for name, cost in profile.calls.items()
        for whole in ([name] if name.startswith("nvml") else _names(name))
    }


def _names(name: str) -> list[str]:
    return [f"cuda{name}", f"cu{name}", f"cu{name}_v2"]
