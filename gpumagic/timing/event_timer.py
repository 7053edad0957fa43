"""GPU time between two points of a program, on every device in use, by CUDA events.

An event pair on the current stream misses side streams, other devices and other threads' streams.
So the start event is recorded on each device that has a context, once it is idle, and an end event
on each of its streams that is still busy. Streams that are not torch's cannot be listed: an event
behind all work of the context shows whether one of them took longer. No context is ever made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import Any, Generic, Protocol, TypeVar

from gpumagic.cuda import graph_capture, torch_cuda
from gpumagic.system import text
from gpumagic.timing import launch_overhead
from gpumagic.timing.context_event import (
    LATE,
    ContextEvent,
    make_context_wait,
    waited_long,
)

#: Seconds for which a wait polls; then it sleeps a thousandth of the time waited between queries.
_SPIN = 5e-3
CAPTURE = "a CUDA graph is being captured, and the GPU may not be waited for"


@dataclass(frozen=True)
class Reading:
    """What one device did between the start and the stop."""

    #: From the start to the end of the device's last work; None where CUDA was first used on the
    #: device after the start.
    seconds: float | None
    #: Everything was already done when the host stopped.
    idle: bool
    #: There was a sign of work: it outlasted the host, or the code waited for it, memory was
    #: allocated, a context was made.
    worked: bool
    #: When the device had finished, on `time.perf_counter`'s clock.
    finished: float
    #: A delay kernel still ran when all end events were recorded: all work was queued behind it.
    queued: bool = False
    #: Work on streams that are not torch's was behind the delay kernel too.
    holds_all: bool = False
    #: The last busy stream was not torch's.
    foreign: bool = False
    #: Seconds from the start event to the end event of each stream, by the stream's handle.
    streams: Mapping[int, float] = field(default_factory=dict)


def wait_for(event: Any) -> None:
    """Wait for an event, to a thousandth of the time; Ctrl-C interrupts, unlike CUDA's own wait."""
    begun = perf_counter()
    while not event.query():
        waited = perf_counter() - begun
        if waited > _SPIN:
            sleep(waited / 1000)


class CaptureError(RuntimeError):
    """Another thread is capturing a CUDA graph on a stream of the device."""


class _ReadableClock(Protocol):
    ordinal: int

    def read(self, host_start: float, host_stop: float) -> Reading: ...


_Clock = TypeVar("_Clock", bound=_ReadableClock)


class DeviceTimer(ABC, Generic[_Clock]):
    """A clock on every device that has a context; reusable, one start and stop at a time.

    An error of a device is not raised: `note` says in a line why there is no GPU time. Subclasses
    define when the host waits for the devices.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, _Clock] = {}
        self._running: list[_Clock] = []
        self._relaxed = graph_capture.RelaxedMode()
        self.note: str | None = None

    @abstractmethod
    def _new_clock(self, ordinal: int) -> _Clock: ...

    @abstractmethod
    def _is_capturing(self, ordinals: tuple[int, ...]) -> bool: ...

    @abstractmethod
    def _stop_clocks(self) -> Iterable[_Clock]:
        """Record the end events that are missing, and return the clocks to read."""

    @abstractmethod
    def _wait_for_new_device(self, ordinal: int) -> None:
        """Wait for a device whose context was made after the start."""

    def _clock(self, ordinal: int) -> _Clock:
        clock = self._clocks.get(ordinal)
        if clock is None:
            clock = self._clocks[ordinal] = self._new_clock(ordinal)
        return clock

    def _give_up(self, error: RuntimeError) -> None:
        self._running = []
        self._clocks.clear()
        self.note = f"the GPU cannot be waited for ({text.reason(error)})"

    def _devices(self) -> tuple[int, ...]:
        """Return the devices to measure now; none while a graph is captured."""
        ordinals = torch_cuda.contexts()
        if ordinals and self._is_capturing(ordinals):
            self.note = CAPTURE
            return ()
        return ordinals

    def _read(self, host_start: float, host_stop: float) -> dict[int, Reading]:
        """Return what each device did; the host ran the code between the two times."""
        if self.note is not None:
            return {}
        try:
            ordinals = self._devices()
            if not ordinals:
                return {}
            with self._relaxed:
                clocks = self._stop_clocks()
                readings = {c.ordinal: c.read(host_start, host_stop) for c in clocks}
                for ordinal in {*ordinals} - {clock.ordinal for clock in self._running}:
                    self._wait_for_new_device(ordinal)
                    readings[ordinal] = Reading(None, False, True, perf_counter())
            return dict(sorted(readings.items()))
        except CaptureError:
            self.note = CAPTURE
        except RuntimeError as error:
            self._give_up(error)
        return {}


class _DeviceClock:
    """The events on one device."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.stream = torch_cuda.current_stream(ordinal)
        self.start = torch_cuda.timing_event(self.stream)
        self.stop = torch_cuda.timing_event(self.stream)
        self.idle = True
        self.queued = False
        self.holds_all = False
        self.empty: Mapping[int, float] = {}
        self.context = ContextEvent(ordinal)
        #: When the host had recorded the event behind all work, on `time.perf_counter`'s clock.
        self.checked = 0.0

    def prepare(self) -> None:
        """Wait until the device is idle."""
        torch_cuda.streams(self.ordinal)
        self.allocations = torch_cuda.allocations(self.ordinal)
        self.stream = torch_cuda.current_stream(self.ordinal)
        for stream in torch_cuda.busy_streams(self.ordinal):  # open to Ctrl-C
            wait_for(torch_cuda.timing_event(stream))
        torch_cuda.synchronize(self.ordinal)

    def record_start(self, delay: launch_overhead.Delay | None) -> None:
        """Record the start event; behind a delay kernel, if ``delay`` is for this device."""
        self.queued = delay is not None and delay.ordinal == self.ordinal
        self.empty, self.holds_all = {}, False
        if delay is not None and self.queued:
            self.empty = delay.empty
            launch_overhead.launch_delay(delay, self.stream)
        self.start.record(self.stream)
        if self.queued:
            launch_overhead.make_other_streams_wait(self.ordinal, self.start, self.stream)
            self.holds_all = make_context_wait(self.ordinal, self.start)

    def record_stop(self) -> None:
        """Record the end event on the current stream; note whether there is work before it."""
        stream = torch_cuda.current_stream(self.ordinal)
        # Short code ends before the GPU has reached the start event; that is no work of the code.
        self.begun = self.queued or self.start.query()
        self.idle = stream.query()
        self.stop.record(stream)
        self.own = stream
        # At once: what another library's streams do until then is not seen.
        may_look = not self.queued and not graph_capture.query(self.ordinal)()
        self.context.known = False
        self.looks_behind_all = may_look and self.context.record().known
        self.checked = perf_counter()

    def settle(self) -> None:
        """Wait for the events that `record_stop` has recorded."""
        for event in (self.stop, self.context.end, self.context.later):
            while not event.query():  # some microseconds
                pass

    def record_busy_streams(self) -> None:
        """Record end events on the other busy streams."""
        # With no work before it, only the event itself keeps the current stream busy.
        busy = torch_cuda.busy_streams(self.ordinal)
        if self.idle or self.queued or not self.begun:
            busy = [stream for stream in busy if stream != self.own]
        if self.looks_behind_all:
            busy = [stream for stream in busy if stream != self.context.stream]
        self.others = [(stream, torch_cuda.timing_event(stream)) for stream in busy]
        self.idle = self.idle and not busy
        # A delay that ended before all events were recorded has let some of them come too late.
        self.queued = self.queued and not self.start.query()

    def read(self, host_start: float, host_stop: float) -> Reading:
        """Wait for the device and return what it did."""
        events = [(self.own, self.stop), *self.others]
        for _, event in events:
            wait_for(event)
        streams: dict[int, float] = {}
        for stream, event in events:
            self._note_end(streams, stream, event)
        foreign = self._find_foreign_work(streams)
        self.idle = self.idle and not foreign
        torch_cuda.synchronize(self.ordinal)
        finished = perf_counter()
        seconds = max(s for handle, s in streams.items() if self._counts(handle, s))
        if not self.begun and seconds <= launch_overhead.NO_WORK:
            self.idle = True
        worked = not self.idle or torch_cuda.allocations(self.ordinal) != self.allocations
        if self.idle:  # the events themselves took time too
            finished = host_stop
            if self.looks_behind_all:
                unseen = self.context.idle_from(self.start)
                if unseen > seconds + LATE:  # the host was held up before it recorded the event
                    seconds, finished = unseen, max(self.checked, host_stop)
        # The start event was recorded before the host's clock started.
        seconds = min(seconds, finished - host_start)
        return Reading(
            seconds, self.idle, worked, finished, self.queued, self.holds_all, foreign, streams
        )

    def _note_end(self, streams: dict[int, float], stream: Any, event: Any) -> None:
        seconds = self.start.elapsed_time(event) / 1e3
        streams[stream.cuda_stream] = max(seconds, streams.get(stream.cuda_stream, 0.0))

    def _find_foreign_work(self, streams: dict[int, float]) -> bool:
        """Return whether streams that are not torch's outlast torch's; add when they finished."""
        event = self.context
        if self.queued:  # then no stream was idle before, which a context event needs
            event.record()
        if event.known:
            for each in (event.end, event.later):
                wait_for(each)
            if event.finishes_last(self.start, max(streams.values())):
                self._note_end(streams, event.stream, event.end)
                return True
        elif waited_long(self.ordinal):
            late = torch_cuda.timing_event(self.own)
            late.synchronize()
            self._note_end(streams, self.own, late)
            return True
        return False

    def _counts(self, handle: int, seconds: float) -> bool:
        """Return whether the time to a stream's end event is more than the event itself takes."""
        empty = self.empty.get(handle)
        own = handle == self.own.cuda_stream
        return own or empty is None or seconds > empty + 2 * torch_cuda.EVENT_RESOLUTION


class EventTimer(DeviceTimer[_DeviceClock]):
    """Times code on idle devices: waits for them before the start and after the stop.

    ``prepare``, ``start``, the code, ``stop``, ``finish``.
    """

    def _new_clock(self, ordinal: int) -> _DeviceClock:
        return _DeviceClock(ordinal)

    def _is_capturing(self, ordinals: tuple[int, ...]) -> bool:
        return graph_capture.under_way(ordinals)

    def prepare(self) -> None:
        """Wait until the devices are idle, and make events: all that takes time."""
        self.note = None
        self._running = []
        try:
            ordinals = self._devices()
            current = torch_cuda.current_device()
            with self._relaxed:
                # The current device last, so that its start event is next to the code.
                for ordinal in sorted(ordinals, key=lambda each: (each == current, each)):
                    clock = self._clock(ordinal)
                    clock.prepare()
                    self._running.append(clock)
        except RuntimeError as error:
            self._give_up(error)

    def start(self, delay: launch_overhead.Delay | None = None) -> None:
        """Record the start events, behind a delay kernel if there is to be one."""
        try:
            for clock in self._running:
                clock.record_start(delay)
        except RuntimeError as error:
            self._give_up(error)

    def stop(self) -> None:
        """Record the first end events: the host is done, the devices perhaps not."""
        try:
            # The current device first: short code is timed by its event.
            with self._relaxed:
                for clock in reversed(self._running):
                    clock.record_stop()
        except RuntimeError as error:
            self._give_up(error)

    def settle(self) -> None:
        """Wait for the events themselves after an empty run."""
        try:
            with self._relaxed:
                for clock in self._running:
                    clock.settle()
        except RuntimeError as error:
            self._give_up(error)

    def finish(self, host_start: float, host_stop: float) -> dict[int, Reading]:
        """Wait for all devices, and return what each did."""
        return self._read(host_start, host_stop)

    def _stop_clocks(self) -> Iterable[_DeviceClock]:
        # The current device first: short work on a stream that is not torch's may end meanwhile.
        clocks = self._running[::-1]
        for clock in clocks:
            clock.record_busy_streams()
        return clocks

    def _wait_for_new_device(self, ordinal: int) -> None:
        torch_cuda.synchronize(ordinal)
