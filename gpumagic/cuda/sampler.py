"""Read the devices by NVML in a thread that runs at the same time as the user's cells.

Queries neither the CUDA driver nor torch: the caller passes in the driver's state.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from gpumagic.cuda import devices, nvml, visible_devices
from gpumagic.cuda.driver import DriverState
from gpumagic.errors import DeviceError
from gpumagic.results import Device


class Sampler:
    """A reader of the devices, with an NVML session of its own, for one thread.

    Raises:
        DeviceError: NVML is missing, does not start or lists no device.
    """

    def __init__(self) -> None:
        self._session = nvml.open_session()
        try:
            count = self._session.count()
        except DeviceError:
            self._session.close()
            raise
        if not count:
            self._session.close()
            raise DeviceError("there is no GPU to watch: NVML lists none on this machine")

    def read(self, state: DriverState, is_current: Callable[[], bool]) -> tuple[Device, ...]:
        """Return the devices.

        ``state`` is the last result of `driver.state`. ``is_current`` is called after the reading
        and returns whether no cell has run since that: a cell may have initialised CUDA, so that
        memory is known to be this process's only where NVML lists it.

        Raises:
            DeviceError: NVML does not report the number of devices.
        """
        variables = visible_devices.variables(os.environ)
        found = devices.compose(self._session.read(), variables, state)
        return found if is_current() else tuple(map(_certain, found))

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def _certain(device: Device) -> Device:
    """Return the device without figures that depend on whether this process has a context now."""
    listed = device.processes
    complete = listed is not None and devices.in_first_pid_namespace()
    if complete or any(process.own for process in listed or ()):
        return device
    return replace(device, memory_own=None, memory_others=None)
