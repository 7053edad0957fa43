"""Read the devices by NVML in a thread that runs at the same time as the user's cells.

Queries neither the CUDA driver nor torch: the caller passes in the driver's state. What was read is
kept in a bounded log, evenly over the whole time, and all of the last minute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpumagic.cuda import devices, nvml, visible_devices
from gpumagic.cuda.driver import DriverState
from gpumagic.errors import DeviceError
from gpumagic.results import Device
from gpumagic.results.watch import DeviceSample, UtilizationSample, WatchedDevice

#: Seconds that sparklines show.
RECENT = 60.0
#: The most samples: an hour, one each second.
_MOST = 3600
#: The least differences that are a change: an idle device's power and temperature vary.
_PERCENT, _BYTES, _CELSIUS, _WATTS = 2, 2**20, 3, 10.0


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


class SampleLog:
    """A log of samples. One thread adds to it while another one reads it."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._samples: list[UtilizationSample] = []
        self._recent: list[UtilizationSample] = []
        self._devices: dict[int, WatchedDevice] = {}
        self._added = 0
        #: Every how many-th sample is kept.
        self.stride = 1

    def add(self, time: float, devices: Sequence[Device]) -> UtilizationSample:
        """Add and return the sample read at ``time``, in seconds since the epoch."""
        sample = UtilizationSample(time, tuple(map(DeviceSample.of, devices)))
        self._devices = {d.index: WatchedDevice.of(d, self._devices.get(d.index)) for d in devices}
        # Another thread may be reading the list: it is replaced, not shortened.
        self._recent = [*self._since(time - RECENT), sample]
        if self._added % self.stride == 0:
            if len(self._samples) >= self._most:
                self._samples = self._samples[::2]
                self.stride *= 2
            self._samples.append(sample)
        self._added += 1
        return sample

    def _since(self, time: float) -> list[UtilizationSample]:
        """Return the recent samples after ``time``, and the last one before."""
        later = [each.time > time for each in self._recent]
        first = later.index(True) if True in later else len(later)
        return self._recent[max(first - 1, 0) :]

    @property
    def recent(self) -> tuple[UtilizationSample, ...]:
        """The samples of the last `RECENT` seconds."""
        return tuple(self._recent)

    @property
    def samples(self) -> tuple[UtilizationSample, ...]:
        """Every ``stride``-th sample since the start, and the last one."""
        last = self._recent[-1:]
        return tuple(self._samples if self._samples[-1:] == last else [*self._samples, *last])

    @property
    def devices(self) -> tuple[WatchedDevice, ...]:
        """The devices of the last sample."""
        return tuple(self._devices.values())


def differ(one: UtilizationSample, other: UtilizationSample) -> bool:
    """Return whether two samples differ by more than the samples of an idle machine do."""
    if len(one.devices) != len(other.devices):
        return True
    return any(_differ(a, b) for a, b in zip(one.devices, other.devices, strict=True))


def _differ(one: DeviceSample, other: DeviceSample) -> bool:
    return one.error != other.error or any(
        (a is None) != (b is None) or (a is not None and b is not None and abs(a - b) >= least)
        for a, b, least in (
            (one.utilization, other.utilization, _PERCENT),
            (one.memory_own, other.memory_own, _BYTES),
            (one.memory_others, other.memory_others, _BYTES),
            (one.memory_used, other.memory_used, _BYTES),
            (one.temperature, other.temperature, _CELSIUS),
            (one.power, other.power, _WATTS),
        )
    )
