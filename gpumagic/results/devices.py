"""The devices of the machine, and what became of a choice among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from gpumagic.results.base import Result, Series, plain
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

Status = Literal["applied", "too-late", "gated", "restarted", "unchanged"]


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
    #: The program and the script, ``python train.py``; never others' arguments.
    command: str | None = None
    #: True for the process that asked; None where NVML's pids cannot be compared with ours.
    own: bool | None = None
    #: Whether it belongs to the user that asks; None where it cannot be looked up.
    mine: bool | None = None


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
    #: The UUID of the MIG instance that this process sees of the device, if it is divided into
    #: such; None where not known.
    instance: str | None = None
    #: Why the device could not be read, if it could not (for example ``"GPU is lost"``).
    error: str | None = None

    def as_seen(self) -> Device:
        """What this process sees of the device: where it is divided, its MIG instance's figures."""
        if not self.mig:
            return self
        part = next((part for part in self.mig if part.uuid == self.instance), MigInstance(""))
        total, used = part.memory_total, part.memory_used
        return dataclasses.replace(
            self,
            name=part.name or self.name,
            memory_total=total,
            memory_used=used,
            memory_free=None if total is None or used is None else total - used,
            utilization=None,
            processes=None,
            memory_others=None,
        )


@dataclass(frozen=True)
class DeviceTable(Series[Device]):
    """The devices of the machine, and what this process sees of them: a sequence of `Device`."""

    items_in: ClassVar[str] = "devices"

    devices: tuple[Device, ...] = ()
    #: ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` of this process, as far as they are set.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Whether the CUDA driver is initialised in this process; None where it cannot be asked.
    cuda_initialized: bool | None = None
    #: CUDA has failed in this process, which remembers that and sees no device any more.
    cuda_failed: bool = False
    #: There is no CUDA driver, although NVML lists the devices: none can be used.
    cuda_missing: bool = False
    driver_version: str | None = None
    #: The newest CUDA that the driver supports, for example ``(13, 0)``.
    cuda_version: tuple[int, int] | None = None
    #: Why there is no table, if there is none: one line.
    error: str | None = None
    #: Whether processes are to be shown.
    show_processes: bool = False
    #: Further remarks, a line each.
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<DeviceTable: {plural(len(self), 'device')}>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a device and a column a field (needs pandas)."""
        import pandas

        rows = [plain(device) for device in self.devices]
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
    #: False where it is not known which these are, before CUDA starts; `devices` is empty then.
    devices_known: bool = True
    #: Whether the CUDA driver is initialised in this process; None where it cannot be asked.
    cuda_initialized: bool | None = None
    #: One line on what was found, and what can be done; None where there is nothing to add.
    message: str | None = None
    #: Further remarks, a line each.
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Selection {self.requested!r}: {self.status}, {len(self.devices)} visible>"
