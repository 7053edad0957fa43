"""The GPU's time for one run of code, between bounds that hold, on every device with a context.

    times = read(stop(start()))    # the code runs between start and stop

The start event lies between two readings of the host's clock, so that no latency needs to be known.
A device worked

- at most from the start event to its last end event, or to when its streams had been seen idle;
- at least from when an end event had been recorded until that was reached: what a busy stream had
  queued by then, it worked off without a gap.

Where the two clocks are compared, one may run faster than the other by `DRIFT`.

Only streams that torch has handed out are asked. How long the device then has to be waited for
tells whether another one was busy. No context is ever made. Errors are not raised: `note` says why
there is no GPU time. This holds for CUDA and for ROCm, whose torch has the same names.

``start(quiet=True)`` is for the line after every cell: nothing is waited for but the cell's own
work, on torch's streams. Where earlier work is under way there is no GPU time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.cuda.pytorch import (
    allocator,
    cuda_events,
    graph_captures,
    streams,
    torch_cuda,
)
from gpumagic.system import text
from gpumagic.timing.run_times import SLACK, Reading, Times
from gpumagic.timing.waits import pause, wait_for, waited

if TYPE_CHECKING:
    from torch.cuda import Event, Stream

#: How far the GPU's clock and the host's drift apart at most, as a part of the time.
DRIFT = 1e-4
#: A wait that takes so many times as long as the wait for an idle device shows work.
_LONGER = 2.0
#: Seconds in which an idle device reaches an event.
_AWAY = 1e-3
CAPTURE = "no GPU time: a CUDA graph is being captured, and the GPU may not be waited for"
BUSY = (
    "no GPU time: earlier work was still under way on cuda:{} when the code began; the wall time "
    "does not wait for the GPU"
)
INTERRUPTED = "interrupted while waiting for the GPU"
#: The devices on which a run was timed, quiet ones apart.
_timed: set[int] = set()


class TimedDevice(NamedTuple):
    """A device that is timed: how its run began, and what was seen when the code had returned.

    Each step returns it with more fields: `_ready` makes the events, `_start` records the start
    event, `_end_current` and `_end_others` record the end events.
    """

    ordinal: int
    streams: streams.Streams
    #: The start event, and an end event; None where the device was first used after the start.
    start: Any = None
    end: Any = None
    allocations: int | None = None
    #: Seconds that a wait for the idle device takes at most; None where it is not waited for.
    idle_wait: float | None = None
    #: Between which times it reached the start event; None where that was slow.
    reached: tuple[float, float] | None = None
    #: The end events on its busy streams, and by when each had been recorded.
    ends: tuple[tuple[Any, float], ...] = ()
    #: All other streams of torch's were idle at this time.
    idle_by: float = 0.0


class Started(NamedTuple):
    #: The current one last, so that its start event is next to the code.
    devices: tuple[TimedDevice, ...]
    #: Why there will be no GPU time.
    note: str | None
    quiet: bool
    #: The clocks, in seconds.
    cpu: float
    at: float


class Stopped(NamedTuple):
    started: Started
    #: Seconds until the code had returned, and of CPU time.
    host: float
    cpu: float
    devices: tuple[TimedDevice, ...] = ()
    note: str | None = None


def start(*, quiet: bool = False) -> Started:
    """Record a start event on each device in use, and read the clocks when it was reached."""
    devices, note = tuple[TimedDevice, ...](), None
    try:
        with graph_captures.Relaxed():
            devices = tuple(map(_start, ready_devices(quiet=quiet)))
    except RuntimeError as error:
        note = _note(error)
    return Started(devices, note, quiet, process_time(), perf_counter())


def stop(started: Started) -> Stopped:
    """Read the clocks at once, then record end events on busy streams: the current ones first."""
    host, cpu = perf_counter() - started.at, process_time() - started.cpu
    if started.note is not None:
        return Stopped(started, host, cpu, note=started.note)
    try:
        with graph_captures.Relaxed():
            known = {device.ordinal for device in started.devices}
            ended = [*map(_end_current, reversed(started.devices))]
            ended += [_end_current(_unready(i)) for i in _in_use() if i not in known]
            used = [device.streams.used() for device in ended]
            _refuse_capture(used)
            return Stopped(started, host, cpu, tuple(map(_end_others, ended, used)))
    except RuntimeError as error:
        return Stopped(started, host, cpu, note=_note(error))


def read(stopped: Stopped) -> Times:
    """Wait for the end events, and for the devices unless quiet.

    Ctrl-C ends the wait for the events.
    """
    begun = perf_counter()
    readings: dict[int, Reading] = {}
    waiting, foreign = list(stopped.devices), False
    try:
        with graph_captures.Relaxed():
            while waiting:
                # In the order in which they finish: what is waited for late has a late end.
                for device in [x for x in waiting if all(event.query() for event, _ in x.ends)]:
                    late = _late_event(device, foreign)
                    foreign = foreign or late is not None
                    readings[device.ordinal] = _reading(device, stopped.started.at, late)
                    waiting.remove(device)
                pause(begun)
    except RuntimeError as error:
        return Times(stopped.host, stopped.cpu, stopped.host, stopped.host, note=_note(error))
    least = max([stopped.host, *(each.end_least for each in readings.values())])
    # What had ended before its stream was asked may have outlasted the code, too.
    most = max([least, *(each.upper for each in readings.values())])
    if not stopped.started.quiet:
        _timed.update(readings)
    return Times(stopped.host, stopped.cpu, least, most, readings, stopped.note)


def read_or_give_up(stopped: Stopped) -> tuple[Times, KeyboardInterrupt | None]:
    """Return what `read` returns; where Ctrl-C ends the wait, what is known by then, and Ctrl-C."""
    try:
        return read(stopped), None
    except KeyboardInterrupt as interrupt:
        wall = perf_counter() - stopped.started.at
        return Times(stopped.host, stopped.cpu, wall, wall, note=INTERRUPTED), interrupt


# --- the steps on one device ----------------------------------------------------------------------


class _NoTimeError(RuntimeError):
    """There is no GPU time, as a CUDA graph is being captured, or earlier work is under way."""


def _note(error: RuntimeError) -> str:
    if isinstance(error, _NoTimeError):
        return str(error)
    return f"no GPU time: the GPU cannot be waited for ({text.reason(error)})"


def _in_use() -> list[int]:
    """Return the devices that have a context, the current one last."""
    current = torch_cuda.current_device()
    return sorted(torch_cuda.contexts(), key=lambda i: (i == current, i))


def ready_devices(*, quiet: bool = False) -> tuple[TimedDevice, ...]:
    """Make what the devices in use need for a start; wait until they are idle, unless ``quiet``.

    Raises:
        RuntimeError: there can be no GPU time.
    """
    devices = [*map(_unready, _in_use())]
    used = [device.streams.used() for device in devices]
    _refuse_capture(used)
    return tuple(_ready(*each, quiet) for each in zip(devices, used, strict=True))


def _unready(ordinal: int) -> TimedDevice:
    return TimedDevice(ordinal, streams.of(ordinal))


def _ready(device: TimedDevice, used: Sequence[Any], quiet: bool) -> TimedDevice:
    end = idle_wait = None
    for stream in filter(streams.is_busy, used):
        if quiet:  # an end event would wait for that work, too
            raise _NoTimeError(BUSY.format(device.ordinal))
        wait_for(cuda_events.timing_event(stream))  # open to Ctrl-C
    # An event is made when it is first recorded; of an idle cell there is no end event.
    start = cuda_events.timing_event(device.streams.current())
    if not quiet:
        end = cuda_events.timing_event(device.streams.current())
        idle_wait = _LONGER * max([waited(device.ordinal) for _ in range(4)][1:]) + SLACK
    allocations = allocator.allocations(device.ordinal)
    return device._replace(start=start, end=end, allocations=allocations, idle_wait=idle_wait)


def _start(device: TimedDevice) -> TimedDevice:
    """Record the start event, and wait until it is reached: later a busy stream has work."""
    recorded = perf_counter()
    device.start.record(device.streams.current())
    while not (there := device.start.query()) and perf_counter() - recorded < _AWAY:
        pass
    return device._replace(reached=(recorded, perf_counter()) if there else None)


def _end_current(device: TimedDevice) -> TimedDevice:
    """Record an end event on the current stream if that is busy; and say by when this was done."""
    own = device.streams.current()
    busy = not graph_captures.is_capturing(own) and streams.is_busy(own)
    return device._replace(ends=(_end(own, device.end),) if busy else (), idle_by=perf_counter())


def _end_others(device: TimedDevice, used: Sequence[Any]) -> TimedDevice:
    """Record end events on a device's other busy streams."""
    own = device.streams.current().cuda_stream
    others = [each for each in used if each.cuda_stream != own]
    ends = [_end(each) for each in others if streams.is_busy(each)]
    # A stream that was not handed out had no work, however late this is seen.
    idle_by = perf_counter() if others else device.idle_by
    return device._replace(ends=(*device.ends, *ends), idle_by=idle_by)


def _end(stream: Stream, event: Event | None = None) -> tuple[Any, float]:
    if event is None:
        event = cuda_events.timing_event(stream)
    else:
        event.record(stream)
    return event, perf_counter()


def _refuse_capture(used: Iterable[Iterable[Any]]) -> None:
    if any(map(graph_captures.is_capturing, chain.from_iterable(used))):
        raise _NoTimeError(CAPTURE)


def _late_event(device: TimedDevice, foreign: bool) -> Any:
    """Wait for the device; return a late event if a stream that is not torch's may be busy."""
    limit, own = device.idle_wait, device.streams.current()
    if limit is None:
        return None
    # After 30 ms of silence the first work took an H200 longer: this first work is not timed.
    wait_for(cuda_events.timing_event(own))
    if waited(device.ordinal) <= limit and not foreign:
        return None
    late = cuda_events.timing_event(own)
    wait_for(late)
    return late


def _reading(device: TimedDevice, begun: float, late: object) -> Reading:
    """Return what is known of a device since ``begun``."""
    new, idle_by = device.start is None, device.idle_by - begun
    sign = new or device.allocations != allocator.allocations(device.ordinal)
    first = device.ordinal not in _timed
    if device.reached is None:
        # There is no start event: the host's clock bounds what there was.
        end = perf_counter() - begun if device.ends else 0.0
        return Reading(0.0, max(end, idle_by), sign=sign, new=new, first=first)
    earliest, latest = (at - begun for at in device.reached)

    def passed(event: object) -> float:
        return cuda_events.seconds_between(device.start, event)

    # The GPU's clock may be fast: at least so much has passed.
    ends = [
        (passed(event) / (1 + DRIFT) + earliest, recorded - begun)
        for event, recorded in device.ends
    ]
    # An event that was reached when it was recorded may have come long after the work.
    outlasted = [(reached, recorded) for reached, recorded in ends if reached > recorded]
    events = [event for event, _ in device.ends] + ([] if late is None else [late])
    return Reading(
        lower=max((reached - recorded for reached, recorded in outlasted), default=0.0),
        upper=max([idle_by, *(passed(event) / (1 - DRIFT) + latest for event in events)]),
        end_least=max((reached for reached, _ in outlasted), default=0.0),
        sign=sign or bool(ends),
        maybe=late is not None,
        first=first,
    )
