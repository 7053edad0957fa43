"""Runs that are queued behind a delay, so that the GPU works them off without a gap.

They alone tell the GPU's time where Python cannot launch fast enough. The delay is torch's own
kernel ``torch.cuda._sleep``, one on each device; it ends by itself: code that synchronises cannot
hang.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from gpumagic.cuda import streams, torch_cuda
from gpumagic.timing.event_timer import Device, prepare, wait_for

#: The delay is this factor, and seconds more, than the host needs; and no longer than this. It is
#: counted in cycles of a clock that few GPUs reach: on others it is longer.
FACTOR, MORE, LONGEST, _CLOCK = 2.0, 3e-3, 0.5, 2e9
#: A device that worked for less than this part of another's time did not work: its events take
#: time, too.
_HARDLY = 0.05


@dataclass(frozen=True)
class Delayed:
    """Devices that a delay keeps busy, and their streams, which wait for its end."""

    devices: tuple[Device, ...]
    streams: tuple[tuple[Device, Any], ...]


def launch_delay(ordinal: int, seconds: float) -> None:
    """Keep a device busy on the current stream."""
    cuda = cast(Any, torch_cuda.loaded()).cuda
    with cuda.device(ordinal):
        cuda._sleep(round(seconds * _CLOCK))


def start(delay: float) -> Delayed:
    """Launch a delay of some seconds on each device in use."""
    devices = prepare().devices
    with streams.Relaxed():
        used = tuple((device, each) for device in devices for each in device.streams.used())
        for device in devices:
            launch_delay(device.ordinal, delay)
            device.start.record(device.streams.current())
        for device, each in used:
            if each.cuda_stream != device.streams.current().cuda_stream:
                device.start.wait(each)
    return Delayed(devices, used)


def read(delayed: Delayed) -> tuple[float, int] | None:
    """Return the GPU's seconds for what was queued, and the device; wait for it.

    None where a delay ended before all was queued (Python waits for the GPU, or was slow), where
    several devices worked, and while a graph is captured.
    """
    try:
        return _read(delayed)
    except RuntimeError:  # a device has failed: the repeats before that stand
        return None


def _read(delayed: Delayed) -> tuple[float, int] | None:
    devices = delayed.devices
    with streams.Relaxed():
        used = [(device, each) for device in devices for each in device.streams.used()]
        if not devices or any(streams.captures(each) for _, each in used):
            return None
        ends = [(device, torch_cuda.timing_event(each)) for device, each in used]
        in_time = not any(device.start.query() for device in devices)
        for _, event in ends:
            wait_for(event)
        # A stream that was handed out meanwhile did not wait for the delay.
        if not in_time or len(ends) != len(delayed.streams):
            return None
        taken = {
            device.ordinal: max(device.start.elapsed_time(end) for on, end in ends if on is device)
            for device in devices
        }
    busiest = max(taken, key=taken.__getitem__)
    if sum(each > taken[busiest] * _HARDLY for each in taken.values()) > 1:
        return None
    return taken[busiest] / 1e3, busiest
