"""What NVML measures now, for a thread that runs beside the user's cells.

Asks neither CUDA's driver nor torch: what the process itself knows of CUDA is handed in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from gpumagic.cuda import devices, nvml, visible_devices
from gpumagic.cuda.driver import DriverState
from gpumagic.results import Device


class Sampler:
    """Reads the devices by an NVML session of its own, for one thread.

    Raises:
        DeviceError: NVML is missing or does not start.
    """

    def __init__(self) -> None:
        self._session = nvml.open_session()

    def read(self, state: DriverState, is_current: Callable[[], bool]) -> tuple[Device, ...]:
        """Return the devices.

        ``state`` is what `driver.state` has last returned. ``is_current`` tells, after the reading,
        whether no cell has run since, which may have initialised CUDA: if one has, memory is this
        process's only where NVML lists it.

        Raises:
            DeviceError: NVML cannot tell how many devices there are.
        """
        variables = {
            name: os.environ[name]
            for name in (visible_devices.MASK, visible_devices.ORDER)
            if name in os.environ
        }
        found = devices.compose(self._session.read(), variables, state, False, False)
        return found if is_current() else tuple(map(_certain, found))

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def _certain(device: Device) -> Device:
    """Return the device with what holds whether or not this process has a context by now."""
    listed = device.processes
    complete = listed is not None and devices.in_first_pid_namespace()
    if complete or any(process.own for process in listed or ()):
        return device
    return replace(device, memory_own=None, memory_others=None)
