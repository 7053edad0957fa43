"""Read the devices by NVML; a field whose call fails is left out.

NVML does not initialise CUDA and creates no context. It ignores ``CUDA_VISIBLE_DEVICES``, lists
every device that the container mounts, in PCI order, and may refuse any field on any machine.

A session is closed after each look: while one is open, no GPU can be reset, be divided by MIG, or
sleep.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

from gpumagic.cuda import driver
from gpumagic.errors import DeviceError
from gpumagic.results.devices import Device, MigInstance
from gpumagic.results.processes import Process

#: Errors after which a device can no longer be read, and their texts.
_LOST = {
    15: "the GPU is lost: it needs a reset, or the machine a reboot",
    16: "the GPU cannot be used before it is reset: nvidia-smi --gpu-reset, or a reboot",
}
#: NVML_ERROR_DRIVER_NOT_LOADED, …_LIBRARY_NOT_FOUND and …_LIB_RM_VERSION_MISMATCH.
DRIVER_NOT_LOADED, _NOT_INSTALLED, VERSIONS_DIFFER = 9, 12, 18
_REASONS = {
    DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded, or a container was started without --gpus",
    _NOT_INSTALLED: "no NVIDIA driver is installed",
    VERSIONS_DIFFER: "the NVIDIA driver was upgraded and its parts do not match: reboot, or reload "
    "the driver",
}
#: What older packages of the same name do not have.
_NEEDED = ("nvmlMemory_v2", "nvmlDeviceGetMigMode", "nvmlDeviceGetComputeRunningProcesses_v2")

#: A cache: by index, each device with the fields that do not change, which a lost one keeps.
_identities: dict[int, Device] = {}


class Session(AbstractContextManager["Session"]):
    """An initialised NVML, which reads the fields of `results.Device`, and is closed at the end.

    Keep it short: meanwhile no GPU can be reset.

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
        if not all(hasattr(pynvml, name) for name in _NEEDED):
            raise DeviceError(
                f"{pynvml.__file__} is an old package in the way of nvidia-ml-py; pip uninstall "
                "pynvml nvidia-ml-py3, then pip install --force-reinstall nvidia-ml-py"
            )
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DeviceError(_reason(error)) from error
        #: By index; and those that are not in MIG mode, which does not change while NVML is open.
        self._handles: dict[int, object] = {}
        self._whole: set[int] = set()
        #: The number of all, which does not change then either.
        self._count: int | None = None
        self.driver_version: str | None = None
        with suppress(pynvml.NVMLError):  # a lost device fails even calls that name none
            self.driver_version = self._ask(pynvml.nvmlSystemGetDriverVersion)

    def close(self, *_: object) -> None:
        """Shut NVML down."""
        with suppress(self._nvml.NVMLError):  # of a lost device, too
            self._nvml.nvmlShutdown()

    __exit__ = close

    def _ask(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Return the result of a call of NVML; None where it fails.

        Raises:
            NVMLError: the device is lost, or needs a reset.
        """
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in _LOST:
                raise
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
        with suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            return int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return None

    # --- all fields of all devices ---------------------------------------------------------------

    def count(self) -> int:
        """Return the number of devices.

        Raises:
            DeviceError: NVML does not report it.
        """
        if self._count is None:
            try:
                self._count = int(self._nvml.nvmlDeviceGetCount())
            except self._nvml.NVMLError as error:
                raise DeviceError(_reason(error)) from error
        return self._count

    def read(self, *, usage: bool = True) -> list[Device]:
        """Return every device, in nvidia-smi's order, without what this process sees and uses.

        ``usage`` also asks for utilisation, temperature and power.

        Raises:
            DeviceError: NVML does not report the number of devices.
        """
        return [self._device(index, usage=usage) for index in range(self.count())]

    def _device(self, index: int, *, usage: bool) -> Device:
        try:
            if index not in self._handles:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                _identities[index] = self._identified(index, handle)
                self._handles[index] = handle
            handle = self._handles[index]
            found = self._measured(_identities[index], handle)
            return self._with_usage(found, handle) if usage else found
        except self._nvml.NVMLError as error:
            # Without the measurements of a device that was lost meanwhile, which may be stale.
            known = _identities.get(index, Device(index))
            return replace(known, error=_reason(error), lost=error.value in _LOST)

    def _identified(self, index: int, handle: object) -> Device:
        nvml, ask = self._nvml, self._ask
        capability = ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
        return Device(
            index,
            uuid=ask(nvml.nvmlDeviceGetUUID, handle),
            name=ask(nvml.nvmlDeviceGetName, handle),
            compute_capability=None if capability is None else tuple(capability),
        )

    def _measured(self, device: Device, handle: object) -> Device:
        nvml, ask = self._nvml, self._ask
        # Version 2 excludes the driver's reserve; some drivers on WSL report version 1 alone.
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        memory = memory or ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        mode, parts = (False, ()) if device.index in self._whole else self._mig(handle)
        if mode is False:
            self._whole.add(device.index)
        listed = self._processes(handle)
        if parts:  # to list all of a divided device takes rights
            known = [each.processes for each in parts if each.processes is not None]
            listed = tuple(itertools.chain(*known)) if len(known) == len(parts) else None
        return replace(
            device,
            memory_total=memory and memory.total,
            memory_used=memory and memory.used,
            memory_free=memory and memory.free,
            processes=listed,
            mig=parts,
            mig_mode=mode,
        )

    def _with_usage(self, device: Device, handle: object) -> Device:
        nvml, ask = self._nvml, self._ask
        rates = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        power = ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        # Its successor, ...TemperatureV, is not in drivers before 555.
        heat = ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        return replace(
            device,
            utilization=rates and rates.gpu,
            temperature=heat,
            power=None if power is None else power / 1000,
            power_limit=None if limit is None else limit / 1000,
        )

    def _processes(self, handle: object) -> tuple[Process, ...] | None:
        nvml = self._nvml
        # Of version 2 an entry has 24 bytes in all drivers that have it, since 510; of version 3 it
        # has 32 in those from 535 until 535.98, which pynvml does not know.
        compute = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle)
        graphics = self._ask(nvml.nvmlDeviceGetGraphicsRunningProcesses_v2, handle)
        if compute is None and graphics is None:
            return None
        # A process of both kinds is listed twice with the same memory.
        found: dict[int, Process] = {}
        for process in (*(compute or ()), *(graphics or ())):
            if process.pid not in found or process.usedGpuMemory is not None:
                found[process.pid] = Process(process.pid, process.usedGpuMemory)
        return tuple(found.values())

    def _mig(self, handle: object) -> tuple[bool | None, tuple[MigInstance, ...]]:
        """Return whether a device is in MIG mode, None if not known, and its instances."""
        nvml, handles = self._nvml, []
        try:
            if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
                return False, ()
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with suppress(nvml.NVMLError_NotFound):
                    handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
        except nvml.NVMLError_NotSupported:  # by the device, if it is the first call
            return False, ()
        except nvml.NVMLError as error:
            if error.value in _LOST:
                raise
            return None, ()
        parts = map(self._instance, handles)
        return True, tuple(part for part in parts if part is not None)

    def _instance(self, handle: object) -> MigInstance | None:
        nvml, ask = self._nvml, self._ask
        uuid = ask(nvml.nvmlDeviceGetUUID, handle)
        if uuid is None:
            return None
        name = ask(nvml.nvmlDeviceGetName, handle)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        total, used = (None, None) if memory is None else (memory.total, memory.used)
        return MigInstance(uuid, name, total, used, self._processes(handle))


def _reason(error: Any) -> str:
    if error.value == _NOT_INSTALLED and driver.installed():
        return (
            "NVML is not installed, though the CUDA driver is: libnvidia-ml.so.1 is missing; start "
            "a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, elsewhere choose by "
            "CUDA_VISIBLE_DEVICES=0 where the notebook process is started"
        )
    known = _LOST.get(error.value) or _REASONS.get(error.value)
    return known or f"NVML reports: {error} (error {error.value})"
