"""Read the devices by NVML, in one session; a field whose call fails is left out.

NVML does not initialise CUDA and creates no context. It ignores ``CUDA_VISIBLE_DEVICES``, lists
every device that the container mounts, in PCI order, and may refuse any field on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpumagic.cuda import driver
from gpumagic.errors import DeviceError
from gpumagic.results.devices import MigInstance, Process

#: Errors after which a device can no longer be read, and their texts.
_LOST = {
    15: "the GPU is lost: it needs a reset, or the machine a reboot",
    16: "the GPU cannot be used before it is reset: nvidia-smi --gpu-reset, or a reboot",
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
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DeviceError(_reason(error)) from error
        self.driver_version: str | None = self._ask(pynvml.nvmlSystemGetDriverVersion)
        cuda = self._ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        self.cuda_version = None if cuda is None else (cuda // 1000, cuda % 1000 // 10)
        #: By index, the fields of a device that do not change, which a lost one keeps.
        self._identities: dict[int, dict[str, Any]] = {}
        #: By index, the handles of the devices whose identity is known: it is not asked again.
        self._handles: dict[int, Any] = {}

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

    # --- one figure of a device, by its UUID -----------------------------------------------------

    def energy(self, uuid: str) -> int | None:
        """Return the energy that a device has used since the driver was loaded, in millijoules.

        None where NVML does not report it (before Volta; MIG instances), and for a device that is
        lost or unknown.
        """
        nvml = self._nvml
        try:
            handle = self._ask(nvml.nvmlDeviceGetHandleByUUID, uuid)
            if handle is None:
                return None
            found: int | None = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
            return found
        except _LostError:
            return None

    # --- all fields of all devices ---------------------------------------------------------------

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

    def _device(self, index: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        try:
            handle = self._handles.get(index)
            if handle is None:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                identity = self._identities[index] = self._identity(handle)
                if None not in identity.values():
                    self._handles[index] = handle
            fields = self._measured(handle)
        except _LostError as error:
            fields["error"] = str(error)
        except self._nvml.NVMLError as error:
            fields["error"] = _LOST.get(error.value) or _reason(error)
        # Without the measurements of a device that was lost meanwhile, which may be stale.
        return {"index": index, **self._identities.get(index, {}), **fields}

    def _identity(self, handle: Any) -> dict[str, Any]:
        nvml, ask = self._nvml, self._ask
        capability = ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
        return {
            "uuid": ask(nvml.nvmlDeviceGetUUID, handle),
            "name": ask(nvml.nvmlDeviceGetName, handle),
            "compute_capability": None if capability is None else tuple(capability),
        }

    def _measured(self, handle: Any) -> dict[str, Any]:
        nvml, ask = self._nvml, self._ask
        # Version 2 excludes the driver's reserve; some drivers on WSL report version 1 alone.
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        memory = memory or ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        power = ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        # Its successor, ...TemperatureV, is not in drivers before 555.
        heat = ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        return {
            "memory_total": memory and memory.total,
            "memory_used": memory and memory.used,
            "memory_free": memory and memory.free,
            "utilization": rates and rates.gpu,
            "temperature": heat,
            "power": None if power is None else power / 1000,
            "power_limit": None if limit is None else limit / 1000,
            "processes": self._processes(handle),
            "mig": self._mig(handle),
        }

    def _processes(self, handle: Any) -> tuple[Process, ...] | None:
        nvml = self._nvml
        compute = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        graphics = self._ask(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
        if compute is None and graphics is None:
            return None
        # A process of both kinds is listed twice with the same memory.
        found: dict[int, Process] = {}
        for process in (*(compute or ()), *(graphics or ())):
            if process.pid not in found or process.usedGpuMemory is not None:
                found[process.pid] = Process(process.pid, process.usedGpuMemory)
        return tuple(found.values())

    def _mig(self, handle: Any) -> tuple[MigInstance, ...]:
        nvml, ask = self._nvml, self._ask
        mode = ask(nvml.nvmlDeviceGetMigMode, handle)
        if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        found = []
        for place in range(ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            uuid = None if part is None else ask(nvml.nvmlDeviceGetUUID, part)
            if uuid is not None:
                name = ask(nvml.nvmlDeviceGetName, part)
                memory = ask(nvml.nvmlDeviceGetMemoryInfo, part)
                total, used = (None, None) if memory is None else (memory.total, memory.used)
                found.append(MigInstance(uuid, name, total, used))
        return tuple(found)


def _reason(error: Any) -> str:
    if error.value == _NOT_INSTALLED and driver.installed():
        return (
            "NVML is not installed, though the CUDA driver is: libnvidia-ml.so.1 is missing; start "
            "a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, elsewhere choose by "
            "CUDA_VISIBLE_DEVICES=0 where the kernel is started"
        )
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
