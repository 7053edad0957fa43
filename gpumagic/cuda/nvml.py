"""Read the devices by NVML, in one session; a field whose call fails is left out.

NVML does not initialise CUDA and creates no context. It ignores ``CUDA_VISIBLE_DEVICES``, lists
every device that the container mounts, in PCI order, and may refuse any field on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpumagic.cuda import driver
from gpumagic.errors import DeviceError
from gpumagic.results import MigInstance, Process

#: Errors after which a device can no longer be read, and their texts.
_LOST = {
    15: "the GPU is lost: it needs a reset, or the machine a reboot",
    16: "the GPU cannot be used before it is reset: nvidia-smi --gpu-reset, or a reboot",
}
#: NVML's reasons for a reduced clock (nvml.h, nvmlClocksEventReason…), except an idle GPU and a
#: clock that was set.
_CLOCK_REASONS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x10: "sync boost with another GPU",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
#: NVML's library is not found.
_NOT_INSTALLED = 12
#: The kernel module does not respond; CUDA cannot start then.
NOT_LOADED = "the NVIDIA driver is not loaded, or a container was started without --gpus"
_REASONS = {
    9: NOT_LOADED,
    _NOT_INSTALLED: "NVML is not installed: there is no NVIDIA driver on this machine",
    18: "the NVIDIA driver was upgraded and its parts do not match: reboot, or reload the driver",
}


class _LostError(Exception):
    """The device was lost while it was read, or it needs a reset."""


@dataclass
class _Properties:
    """The properties of a device that do not change."""

    fields: dict[str, Any] = field(default_factory=dict)
    may_have_mig: bool = True


class Session:
    """An initialised NVML, which reads the fields of `results.Device`.

    Raises:
        DeviceError: pynvml cannot be imported, or NVML does not start; the reason in one line.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except Exception as error:
            raise DeviceError(
                f"pynvml cannot be imported ({error}); install it with: pip install nvidia-ml-py"
            ) from error
        self._nvml: Any = pynvml
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise DeviceError(_reason(error)) from error
        sensor = nvml.NVML_TEMPERATURE_GPU
        # Deprecated in favour of ...TemperatureV, which drivers before 555 do not have.
        self._temperature = lambda handle: nvml.nvmlDeviceGetTemperature(handle, sensor)
        self.driver_version: str | None = self._ask(nvml.nvmlSystemGetDriverVersion)
        cuda = self._ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
        self.cuda_version = None if cuda is None else (cuda // 1000, cuda % 1000 // 10)
        self._handles: dict[int, tuple[Any, _Properties]] = {}

    def close(self) -> None:
        """Shut NVML down."""
        self._ask(self._nvml.nvmlShutdown)

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a call of NVML; None where it fails.

        Raises:
            _LostError: the device is lost or needs a reset.
        """
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in _LOST:
                raise _LostError(_LOST[error.value]) from error
            return None
        except (UnicodeDecodeError, self._nvml.NVMLLibraryMismatchError):
            return None  # the latter, no NVMLError: the driver lacks a newer version of a call

    def count(self) -> int:
        """Return the number of devices.

        Raises:
            DeviceError: NVML does not report it.
        """
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            raise DeviceError(_reason(error)) from error

    def read(self) -> list[dict[str, Any]]:
        """Return every device's fields, in nvidia-smi's order.

        Raises:
            DeviceError: NVML does not report the number of devices.
        """
        return [self._device(index) for index in range(self.count())]

    def clock_reasons(self, uuid: str) -> tuple[str, ...]:
        """Return why a device's clock is reduced now; empty also where NVML does not report it."""
        nvml = self._nvml
        bits = self._number(uuid, nvml.nvmlDeviceGetCurrentClocksEventReasons)
        if bits is None:  # its name in drivers before 535
            bits = self._number(uuid, nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return tuple(reason for bit, reason in _CLOCK_REASONS.items() if (bits or 0) & bit)

    def identities(self) -> list[tuple[int, str | None]]:
        """Return index and UUID of the devices that were read; calls no function of NVML."""
        return [
            (index, properties.fields.get("uuid"))
            for index, (_, properties) in self._handles.items()
        ]

    def sm_clock(self, uuid: str) -> int | None:
        """Return a device's current SM clock in MHz; None where NVML does not report it."""
        nvml = self._nvml
        return self._number(uuid, nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)

    def energy(self, uuid: str) -> int | None:
        """Return the energy that a device has used since the driver was loaded, in millijoules.

        None where NVML does not report it (before Volta; MIG instances).
        """
        return self._number(uuid, self._nvml.nvmlDeviceGetTotalEnergyConsumption)

    def pids(self, uuid: str) -> list[int] | None:
        """Return NVML's pids of the processes on a device; None where it does not list them."""
        found = self._of_device(uuid, self._processes)
        return None if found is None else [process.pid for process in found]

    def _number(self, uuid: str, call: Callable[..., Any], *arguments: Any) -> int | None:
        """Return the result of a call for a device; None where it fails."""
        found = self._of_device(uuid, lambda handle: self._ask(call, handle, *arguments))
        return None if found is None else int(found)

    def _of_device(self, uuid: str, read: Callable[[Any], Any]) -> Any:
        """Return ``read(handle)`` for a device; None if it is lost or not known."""
        try:
            handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
            return None if handle is None else read(handle)
        except _LostError:
            return None

    def _device(self, index: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"index": index}
        known = self._handles.get(index)
        try:
            if known is None:
                known = self._open(index)
            handle, properties = known
            fields.update(properties.fields)
            self._measure(handle, properties, fields)
        except _LostError as error:
            # Values read before the loss may be stale, except for the identity.
            identity = ("index", "uuid", "name", "compute_capability")
            fields = {key: fields[key] for key in identity if key in fields}
            fields["error"] = str(error)
        except self._nvml.NVMLError as error:
            fields["error"] = _reason(error)
        return fields

    def _open(self, index: int) -> tuple[Any, _Properties]:
        nvml, properties = self._nvml, _Properties()
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            if error.value in _LOST:
                raise _LostError(_LOST[error.value]) from error
            raise
        capability = self._ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
        properties.fields = {
            "uuid": self._ask(nvml.nvmlDeviceGetUUID, handle),
            "name": self._ask(nvml.nvmlDeviceGetName, handle),
            "compute_capability": None if capability is None else tuple(capability),
        }
        if None not in properties.fields.values():
            self._handles[index] = handle, properties
        return handle, properties

    def _measure(self, handle: Any, properties: _Properties, fields: dict[str, Any]) -> None:
        nvml, ask = self._nvml, self._ask
        memory = self._memory(handle)
        if memory is not None:
            fields["memory_total"] = memory.total
            fields["memory_used"] = memory.used
            fields["memory_free"] = memory.free
        rates = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        if rates is not None:
            fields["utilization"] = rates.gpu
        fields["temperature"] = ask(self._temperature, handle)
        power = ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        fields["power"] = None if power is None else power / 1000
        fields["power_limit"] = None if limit is None else limit / 1000
        fields["processes"] = self._processes(handle)
        if properties.may_have_mig:
            fields["mig"] = self._mig(handle, properties)

    def _memory(self, handle: Any) -> Any:
        """Return the figures by version 2, which excludes the driver's reserve; else by version 1.

        None where NVML reports neither.
        """
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        return self._ask(nvml.nvmlDeviceGetMemoryInfo, handle) if memory is None else memory

    def _processes(self, handle: Any) -> tuple[Process, ...] | None:
        nvml = self._nvml
        compute = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        graphics = self._ask(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
        if compute is None and graphics is None:
            return None
        if not compute and not graphics:
            return ()
        found: dict[int, Process] = {}
        for kind, listed in (("compute", compute or ()), ("graphics", graphics or ())):
            for process in listed:
                before = found.get(process.pid)
                # A process of both kinds is listed twice with the same memory.
                both = kind if before is None else f"{before.kind}, {kind}"
                memory = process.usedGpuMemory
                if memory is None and before is not None:
                    memory = before.memory
                found[process.pid] = Process(process.pid, memory, both)
        return tuple(found.values())

    def _mig(self, handle: Any, properties: _Properties) -> tuple[MigInstance, ...]:
        nvml, ask = self._nvml, self._ask
        mode = ask(nvml.nvmlDeviceGetMigMode, handle)
        if mode is None:
            properties.may_have_mig = False
        if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        found = []
        for place in range(ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            uuid = None if part is None else ask(nvml.nvmlDeviceGetUUID, part)
            if uuid is not None:
                memory = ask(nvml.nvmlDeviceGetMemoryInfo, part)
                found.append(
                    MigInstance(
                        uuid,
                        ask(nvml.nvmlDeviceGetName, part),
                        None if memory is None else memory.total,
                        None if memory is None else memory.used,
                    )
                )
        return tuple(found)


def _reason(error: Any) -> str:
    if error.value == _NOT_INSTALLED and driver.installed():
        return "NVML is not installed, though the CUDA driver is: libnvidia-ml.so.1 is missing"
    known = _REASONS.get(error.value)
    return known or f"NVML reports: {error} (error {error.value})"


_session: Session | None = None


def session() -> Session:
    """Return this process's NVML session; the first call starts it, which is slow.

    Raises:
        DeviceError: NVML is missing or does not start; the reason in one line.
    """
    global _session
    if _session is None:
        _session = open_session()
    return _session


def open_session() -> Session:
    """Return a new session, for another thread; NVML counts its initialisations.

    Raises:
        DeviceError: as for `session`.
    """
    try:
        return Session()
    except _LostError as error:  # a lost device fails even calls that name no device
        raise DeviceError(f"NVML reports: {error}") from error


def opened() -> Session | None:
    """Return the open session of `session`; None if there is none."""
    return _session


def close() -> None:
    """Close the session of `session`, if there is one."""
    global _session
    if _session is not None:
        _session.close()
        _session = None
