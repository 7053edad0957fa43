"""What the magics return: frozen dataclasses, data only.

Units are bytes, seconds, percent, degrees Celsius and watts. What the hardware or the driver cannot
report is ``None``, never 0. How a result looks is the business of ``gpumagic.display``; results
only know that they can be shown.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

if TYPE_CHECKING:
    import pandas

Status = Literal["applied", "too-late", "gated", "restarted", "unchanged"]
Bound = Literal["gpu", "host"]


class Result:
    """A result that shows itself: as text where there is only text, as HTML in a notebook.

    The rendering lives in ``gpumagic.display`` and is imported when a result is first shown.
    """

    def __str__(self) -> str:
        text: str = import_module("gpumagic.display").as_text(self)
        return text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bundle: dict[str, str] = import_module("gpumagic.display").mimebundle(self)
        return bundle

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries, lists, strings and numbers."""
        plain = _plain(self)
        assert isinstance(plain, dict)
        return plain

    def to_json(self, **options: Any) -> str:
        """The result as JSON; ``options`` go to `json.dumps`."""
        return json.dumps(self.to_dict(), **options)


def _plain(value: Any) -> Any:
    """``value`` with dataclasses turned into dictionaries and mappings' keys kept."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


# --- devices ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A process that holds memory on a device, as NVML reports it."""

    pid: int
    #: Bytes of device memory, or None where the driver does not say (WDDM, MIG without permission).
    memory: int | None = None
    #: ``"compute"`` or ``"graphics"``.
    kind: str = "compute"
    #: None where the process cannot be looked up (ended, another pid namespace, no permission).
    user: str | None = None
    command: str | None = None
    #: True for the process that asked; None where NVML's pids cannot be compared with ours.
    own: bool | None = None


@dataclass(frozen=True)
class MigInstance:
    """A MIG instance of a device."""

    uuid: str
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None


@dataclass(frozen=True)
class Device:
    """One physical GPU. Bytes, percent, degrees Celsius, watts; None where not reported."""

    #: nvidia-smi's index.
    index: int
    #: The CUDA ordinal (``cuda:N``) in this process, or None if the device is hidden or the
    #: ordinal is not known (see ``visible``).
    ordinal: int | None = None
    uuid: str | None = None
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    memory_free: int | None = None
    #: Percent of the last sampling period in which a kernel ran (NVML: 1/6 to 1 second).
    utilization: int | None = None
    temperature: int | None = None
    power: float | None = None
    power_limit: float | None = None
    #: None where NVML does not list processes.
    processes: tuple[Process, ...] | None = None
    #: True if this process can use the device, False if it is hidden, None where not known.
    visible: bool | None = None
    #: Bytes of device memory that this process holds, or None where not known.
    memory_own: int | None = None
    #: Bytes that other processes hold, or None where not known.
    memory_others: int | None = None
    compute_capability: tuple[int, int] | None = None
    mig: tuple[MigInstance, ...] = ()
    #: Why the device could not be read, if it could not (for example ``"GPU is lost"``).
    error: str | None = None


@dataclass(frozen=True)
class DeviceTable(Result, Sequence[Device]):
    """The devices of the machine, and what this process sees of them: a sequence of `Device`."""

    devices: tuple[Device, ...] = ()
    #: ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` of this process, as far as they are set.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Whether the CUDA driver is initialised in this process; None where it cannot be asked.
    cuda_initialized: bool | None = None
    #: CUDA has failed in this process, which remembers that and sees no device any more.
    cuda_failed: bool = False
    driver_version: str | None = None
    #: The newest CUDA that the driver supports, for example ``(13, 0)``.
    cuda_version: tuple[int, int] | None = None
    #: Why there is no table, if there is none: one line.
    error: str | None = None
    #: Whether processes are to be shown.
    show_processes: bool = False
    #: Further remarks, a line each.
    notes: tuple[str, ...] = ()

    @overload
    def __getitem__(self, key: int) -> Device: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Device, ...]: ...
    def __getitem__(self, key: int | slice) -> Device | tuple[Device, ...]:
        return self.devices[key]

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    def __repr__(self) -> str:
        return f"<DeviceTable: {len(self)} device{'' if len(self) == 1 else 's'}>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a device and a column a field (needs pandas)."""
        import pandas

        rows = [_plain(device) for device in self.devices]
        columns = [f.name for f in dataclasses.fields(Device)]
        return pandas.DataFrame(rows, columns=columns).set_index("index")


@dataclass(frozen=True)
class Selection(Result):
    """What became of a choice of devices: verified, never hoped."""

    #: The spec as the user typed it.
    requested: str
    #: The variables as they now stand in this process; None for one that is not set.
    environment: Mapping[str, str | None]
    status: Status
    #: The devices that this process sees after the act, in CUDA's order. When it is too late these
    #: are the ones that are really visible, not the ones asked for.
    devices: tuple[Device, ...] = ()
    #: Whether the CUDA driver is initialised in this process; None where it cannot be asked.
    cuda_initialized: bool | None = None
    #: One line on what was found, and what can be done; None where there is nothing to add.
    message: str | None = None
    #: Further remarks, a line each.
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Selection {self.requested!r}: {self.status}, {len(self.devices)} visible>"


# --- time ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Times of one quantity in seconds: one value a repeat, the mean over that repeat's loops."""

    all: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.all:
            raise ValueError("a Sample needs at least one value")

    @property
    def median(self) -> float:
        return statistics.median(self.all)

    @property
    def mean(self) -> float:
        return math.fsum(self.all) / len(self.all)

    @property
    def stdev(self) -> float:
        """Population standard deviation, as IPython's ``TimeitResult`` computes it."""
        mean = self.mean
        return math.sqrt(math.fsum((x - mean) ** 2 for x in self.all) / len(self.all))

    @property
    def best(self) -> float:
        return min(self.all)

    @property
    def worst(self) -> float:
        return max(self.all)

    def quantile(self, q: float) -> float:
        """The ``q``-quantile (0 to 1), interpolated linearly."""
        ordered = sorted(self.all)
        position = q * (len(ordered) - 1)
        low = math.floor(position)
        high = math.ceil(position)
        return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

    @property
    def iqr(self) -> float:
        """Interquartile range."""
        return self.quantile(0.75) - self.quantile(0.25)

    def __repr__(self) -> str:
        return f"<Sample: median {self.median:.6g} s of {len(self.all)}>"


@dataclass(frozen=True)
class CudaTiming(Result):
    """How long a cell took: on the GPU by CUDA events, on the wall, on the CPU. Seconds."""

    #: From the start of the cell until the last device had finished, by CUDA events; None where
    #: there is no GPU time, and ``gpu_note`` says why.
    gpu: Sample | None
    #: From the start of the cell until everything, GPU work included, had finished.
    wall: Sample
    #: CPU time of this process, user and system, all threads.
    cpu: Sample
    per_device: Mapping[int, Sample] = field(default_factory=dict)
    loops: int = 1
    repeat: int = 1
    warmup: int = 0
    #: Seconds spent in compiling the cell, before the clock was started.
    compile_time: float = 0.0
    #: What limited the cell: ``"gpu"``, ``"host"``, or None where not known.
    bound: Bound | None = None
    #: From the start of the cell until its Python code returned, GPU work possibly unfinished.
    host: Sample | None = None
    cpu_user: Sample | None = None
    cpu_system: Sample | None = None
    #: True if the run ended by an exception or an interrupt, so that the figures are partial.
    partial: bool = False
    #: True if the GPU was already idle when the code returned: it may have been idle in between
    #: too, waiting for the host, so that ``gpu`` is an upper bound.
    gpu_at_most: bool = False
    #: Why there is no GPU time, or what to bear in mind about it; one line.
    gpu_note: str | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        gpu = "-" if self.gpu is None else f"{self.gpu.median:.6g} s"
        return f"<CudaTiming: gpu {gpu}, wall {self.wall.median:.6g} s>"

    # TimeitResult's attributes, for the GPU times (for the wall times where there is no GPU).

    @property
    def _timed(self) -> Sample:
        return self.wall if self.gpu is None else self.gpu

    @property
    def timings(self) -> list[float]:
        """Seconds per loop, one value a repeat."""
        return list(self._timed.all)

    @property
    def all_runs(self) -> list[float]:
        """Seconds of all loops of a repeat, one value a repeat."""
        return [value * self.loops for value in self._timed.all]

    @property
    def best(self) -> float:
        return self._timed.best

    @property
    def worst(self) -> float:
        return self._timed.worst

    @property
    def average(self) -> float:
        return self._timed.mean

    @property
    def stdev(self) -> float:
        return self._timed.stdev


# --- memory ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device as one process sees it. Bytes; None where not known."""

    #: Held by live tensors, by torch's caching allocator.
    allocated: int | None = None
    #: Taken from the device by the allocator: live tensors and cache.
    reserved: int | None = None
    #: Highest ``allocated`` since the start or the user's last reset.
    peak: int | None = None
    free: int | None = None
    total: int | None = None
    #: This process, outside the allocator: the CUDA context, libraries' workspaces.
    outside: int | None = None
    #: Other processes.
    others: int | None = None
    name: str | None = None
    #: nvidia-smi's index.
    index: int | None = None
    #: Change of ``allocated`` and ``reserved`` since the previous report; None for the first.
    allocated_change: int | None = None
    reserved_change: int | None = None
    #: Whether this process has a CUDA context on the device; without one it holds nothing there.
    context: bool | None = None


@dataclass(frozen=True)
class MemoryReport(Result):
    """GPU memory now: one `DeviceMemory` for each CUDA ordinal."""

    devices: Mapping[int, DeviceMemory] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Why there is no report, if there is none: one line.
    error: str | None = None

    def __repr__(self) -> str:
        return f"<MemoryReport: {len(self.devices)} device{'' if len(self.devices) == 1 else 's'}>"


@dataclass(frozen=True)
class DeviceMemoryDelta:
    """What a cell did to one device's memory, by the allocator's counters. Bytes, exact."""

    #: Change of the bytes held by live tensors.
    allocated: int
    #: Change of the bytes that the allocator holds.
    reserved: int
    #: Highest ``allocated`` during the cell, above its value at the start.
    peak: int
    #: Bytes held by live tensors at the end.
    allocated_now: int = 0
    #: Bytes that the allocator holds at the end.
    reserved_now: int = 0
    #: Allocations that failed (out of memory) during the cell.
    ooms: int = 0
    #: Allocations that succeeded only after the cache was emptied.
    retries: int = 0


@dataclass(frozen=True)
class MemoryDelta(Result):
    """What a cell did to GPU memory: one `DeviceMemoryDelta` for each CUDA ordinal in use."""

    devices: Mapping[int, DeviceMemoryDelta] = field(default_factory=dict)
    #: True if the cell raised or was interrupted.
    partial: bool = False
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none: one line.
    error: str | None = None

    def __repr__(self) -> str:
        inner = ", ".join(f"{i}: {d.allocated:+d} B" for i, d in self.devices.items())
        return f"<MemoryDelta {inner or 'no device'}>"
