"""Runs that are queued behind a delay, so that the GPU works them off without a gap.

They alone tell the GPU's time where Python cannot launch fast enough. The delay is torch's own
kernel ``torch.cuda._sleep``, one on each device; it ends by itself: code that synchronises cannot
hang.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from gpumagic.cuda import streams, torch_cuda
from gpumagic.timing.event_timer import DeviceTimer, ready_devices, wait_for

#: The delay is this factor, and seconds more, than the host needs; and no longer than this. It is
#: counted in cycles of a clock that few GPUs reach: on others it is longer.
FACTOR, MORE, LONGEST, _CLOCK = 2.0, 3e-3, 0.5, 2e9


@dataclass(frozen=True)
class Delayed:
    """Devices that a delay keeps busy, and on how many streams work waits for its end."""

    devices: tuple[DeviceTimer, ...]
    streams: int


def launch_delay(ordinal: int, seconds: float) -> None:
    """Keep a device busy on the current stream."""
    cuda = cast(Any, torch_cuda.loaded()).cuda
    with cuda.device(ordinal):
        cuda._sleep(round(seconds * _CLOCK))


def start(delay: float) -> Delayed:
    """Launch a delay of some seconds on each device in use.

    Raises:
        RuntimeError: a device has failed, or a graph is being captured.
    """
    with streams.Relaxed():
        devices = ready_devices()
        used = _used(devices)
        for device in devices:
            launch_delay(device.ordinal, delay)
            device.start.record(device.streams.current())
        for device, each in used:
            if each.cuda_stream != device.streams.current().cuda_stream:
                device.start.wait(each)
    return Delayed(devices, len(used))


def read(delayed: Delayed) -> dict[int, float] | None:
    """Wait for what was queued; return the seconds until it was done, by device.

    None where a delay ended before all was queued (Python waits for the GPU, or was slow), and
    while a graph is captured.

    Raises:
        RuntimeError: a device has failed.
    """
    with streams.Relaxed():
        used = _used(delayed.devices)
        if any(streams.captures(each) for _, each in used):
            return None
        ends = [(device, torch_cuda.timing_event(each)) for device, each in used]
        in_time = not any(device.start.query() for device in delayed.devices)
        for _, event in ends:
            wait_for(event)
        # A stream that was handed out meanwhile did not wait for the delay.
        if not in_time or len(ends) != delayed.streams:
            return None
        taken = dict.fromkeys((device.ordinal for device in delayed.devices), 0.0)
        for device, event in ends:
            seconds = device.start.elapsed_time(event) / 1e3
            taken[device.ordinal] = max(taken[device.ordinal], seconds)
    return taken


def _used(devices: Iterable[DeviceTimer]) -> list[tuple[DeviceTimer, Any]]:
    """Return the streams on which there can be work."""
    return [(device, each) for device in devices for each in device.streams.used()]
