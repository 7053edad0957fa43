"""A bounded log of samples: evenly over the whole time, and all of the last minute."""

from __future__ import annotations

from collections.abc import Sequence

from gpumagic.results import Device
from gpumagic.results.watch import DeviceSample, UtilizationSample, WatchedDevice

#: Seconds that sparklines show.
RECENT = 60.0
#: The most samples: an hour, one each second.
_MOST = 3600
#: The least differences that are a change: an idle device's power and temperature vary.
_PERCENT, _BYTES, _CELSIUS, _WATTS = 2, 2**20, 3, 10.0


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
