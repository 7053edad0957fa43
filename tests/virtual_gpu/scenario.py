"""What a virtual machine holds, written down: its GPUs, driver, processes and faults."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import profiles
from .layout import CONSTANTS, FIELDS, State

GiB = 2**30
MiB = 2**20
# A cycle of torch.cuda._sleep is a nanosecond.
SLEEP_CYCLES_PER_SECOND = 1_000_000_000
DRIVER_VERSION = "580.95.05"

PID_NAMESPACE = "/proc/self/ns/pid"


@dataclass(frozen=True)
class Mig:
    """A MIG instance of a GPU."""

    name: str = "1g.10gb"
    memory: int = 10 * GiB
    uuid: str | None = None


@dataclass(frozen=True)
class GPU:
    """One GPU: bytes, watts, °C, percent.

    `denied`: fields that NVML tells of its MIG instances only. `mig_mode`: default, whether it has
    such.
    """

    name: str = "NVIDIA H100 80GB HBM3"
    memory: int = 80 * GiB
    compute_capability: tuple[int, int] = (9, 0)
    uuid: str | None = None
    utilization: int = 0
    temperature: int = 40
    power: float = 70
    power_limit: float = 700
    reserved: int = 512 * MiB
    integrated: bool = False
    unsupported: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    compute_mode: str = "default"
    mig: Sequence[Mig] = ()
    mig_mode: bool | None = None


@dataclass(frozen=True)
class ExternalProcess:
    """Somebody else's process on a GPU, as NVML reports it."""

    device_index: int
    pid: int
    memory_bytes: int
    name: str = "python"


@dataclass(frozen=True)
class Scenario:
    """A virtual machine. Indexes are nvidia-smi's.

    `devices`: how many default GPUs, or the GPUs. `driver`, `nvml`: whether libcuda.so.1 and
    libnvidia-ml.so.1 can be found; or which of `build.NVML`, by its driver's version ("535.54").
    `faults`: error code by call name ("nvml*" for all of a prefix). `lost`: GPUs that fell off the
    bus. `cuda_order`: nvidia-smi's index of each CUDA ordinal where CUDA_DEVICE_ORDER is unset (the
    fastest first). `host_pids`: NVML reports pids of another namespace. `container`: this process
    is in one. `files`: what else lies below /dev, /proc and so on, or something else than is there
    by default; None takes a file away. `profile`: what calls take, one of `profiles.PROFILES`;
    default: as ``VGPU_PROFILE`` says, else nothing.
    """

    devices: Sequence[GPU] | int = 2
    driver: bool = True
    nvml: bool | str = True
    faults: Mapping[str, int] = field(default_factory=dict)
    processes: Sequence[ExternalProcess] = ()
    host_pids: bool = False
    lost: Sequence[int] = ()
    cuda_order: Sequence[int] | None = None
    cuda_version: int = 13000
    container: bool = False
    files: Mapping[str, str | None] = field(default_factory=dict)
    profile: str | None = None

    @property
    def gpus(self) -> list[GPU]:
        """The GPUs, in nvidia-smi's order."""
        if isinstance(self.devices, int):
            return [GPU() for _ in range(self.devices)]
        return list(self.devices)

    @property
    def system_files(self) -> dict[str, str]:
        """The files by which this machine's system describes itself, and their text.

        A link's text is what it points to.
        """
        outside = self.container or self.host_pids
        found: dict[str, str | None] = {
            "/proc/version": "Linux version 6.1.0-18-amd64 (build@host) #1 SMP\n",
            PID_NAMESPACE: f"pid:[{4026532177 if outside else 4026531836}]",
        }
        if self.container:
            found["/.dockerenv"] = ""
        if self.driver or self.nvml:
            nodes = [f"nvidia{index}" for index in range(len(self.gpus))]
            found |= {f"/dev/{name}": "" for name in (*nodes, "nvidiactl", "nvidia-uvm")}
            module = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER_VERSION}\n"
            found["/proc/driver/nvidia/version"] = module
            for index, gpu in enumerate(self.gpus):
                place = f"/proc/driver/nvidia/gpus/0000:{index + 1:02x}:00.0/information"
                uuid = gpu.uuid or default_uuid(index)
                found[place] = f"Model: \t\t {gpu.name}\nGPU UUID: \t {uuid}\n"
        found |= self.files
        return {path: text for path, text in found.items() if text is not None}

    def write(self, path: Path) -> None:
        """Writes the shared file that the libraries map."""
        content = bytes(self._state())
        with path.open("wb") as file:
            file.write(content.rstrip(b"\0"))  # the rest is a hole
            file.truncate(len(content))

    def write_files(self, root: Path) -> None:
        """Writes `system_files` and `/dev/shm` below `root`; a program among them can be run."""
        (root / "dev/shm").mkdir(parents=True, exist_ok=True)
        for name, text in self.system_files.items():
            path = Path(f"{root}{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == PID_NAMESPACE:
                path.symlink_to(text)
            else:
                path.write_text(text, encoding="utf-8")
                path.chmod(0o755 if text.startswith("#!") else 0o666)

    def _state(self) -> Any:
        order = range(len(self.gpus)) if self.cuda_order is None else self.cuda_order
        state = State()
        state.magic = CONSTANTS["MAGIC"]
        # The structure is the same size on both sides, or the libraries say so and go without.
        state.layout_size = len(bytes(state))
        state.n_gpus = len(self.gpus)
        state.cuda_version = self.cuda_version
        state.host_pids = self.host_pids
        state.driver_version = (
            self.nvml if isinstance(self.nvml, str) else DRIVER_VERSION
        ).encode()
        state.cuda_order[: len(order)] = order
        for index, gpu in enumerate(self.gpus):
            _fill_gpu(state.gpus[index], gpu, index)
            state.gpus[index].lost = index in self.lost
        for slot, process in enumerate(self.processes):
            fill_external(state.external[slot], process)
        for slot, (name, code) in enumerate(self.faults.items()):
            fill_rule(state.rules[slot], name, code)
        state.n_rules = len(self.faults)
        fill_profile(state, profiles.profile(self.profile))
        return state


def default_uuid(index: int, instance: int | None = None) -> str:
    """The UUID of a GPU (or MIG instance) that was given none: always the same, no two alike."""
    kind = "GPU" if instance is None else "MIG"
    return f"{kind}-{uuids.uuid5(uuids.NAMESPACE_OID, f'virtual {kind} {index} {instance}')}"


def _fill_gpu(state: Any, gpu: GPU, index: int) -> None:
    set_fields(state, **{name: getattr(gpu, name) for name in SETTABLE})
    state.uuid = (gpu.uuid or default_uuid(index)).encode()
    state.pci_bus = index + 1
    state.n_mig = len(gpu.mig)
    state.mig_mode = bool(gpu.mig) if gpu.mig_mode is None else gpu.mig_mode
    for number, mig in enumerate(gpu.mig):
        instance = state.mig[number]
        instance.uuid = (mig.uuid or default_uuid(index, number)).encode()
        instance.name = mig.name.encode()
        instance.memory = mig.memory
        instance.gpu_instance = number + 1


#: The fields of `GPU` that may change while processes run; NVML counts milliwatts.
SETTABLE = tuple(GPU.__dataclass_fields__.keys() - {"uuid", "mig", "mig_mode"})
COMPUTE_MODES = {"default": 0, "prohibited": 2, "exclusive": 3}


def set_fields(state: Any, **fields: Any) -> None:
    """Stores fields of `GPU`, under their own names and units."""
    for name, value in fields.items():
        if name not in SETTABLE:
            raise TypeError(f"{name!r} is none of {', '.join(SETTABLE)}")
        if name in ("power", "power_limit"):
            value = round(value * 1000)
        elif name in ("unsupported", "denied"):
            value = sum(FIELDS[each] for each in value)
        elif name == "compute_mode":
            value = COMPUTE_MODES[value]
        elif name == "name":
            value = value.encode()
        setattr(state, name, value)


def fill_profile(state: Any, profile: profiles.Profile) -> None:
    """Store what calls and first uses take."""
    state.launch_cost_ns = round(1000 * profile.launch)
    for name, value in profiles.nanoseconds(profile).items():
        setattr(state.profile, name, value)
    costs = list(profiles.costs(profile).items())
    for index, slot in enumerate(state.costs):
        name, slot.ns = costs[index] if index < len(costs) else ("", 0)
        slot.name = name.encode()


def fill_external(state: Any, process: ExternalProcess) -> None:
    """Store another user's process."""
    state.gpu = process.device_index
    state.pid = process.pid
    state.mig = -1
    state.memory = process.memory_bytes
    state.name = process.name.encode()
    state.active = 1


def fill_rule(
    state: Any,
    name: str,
    code: int | None,
    times: int | None = None,
    seconds: float = 0,
) -> None:
    """Stores a fault (`code`), or slowness where `code` is None."""
    state.name = name.encode()
    state.fails = code is not None
    state.code = code or 0
    state.times = -1 if times is None else times
    state.delay_ns = round(seconds * 1e9)
    state.seen = 0
    state.active = 1
