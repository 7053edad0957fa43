"""GPU time between two points of a program, on every device in use, by CUDA events.

An event pair on the current stream misses side streams, other devices and other threads' streams.
So a start event is recorded on each device that has a context, and an end event on each of its
streams that is still busy. No context is ever made. Streams that are not torch's cannot be listed:
that they outlast all others is seen by how long the device then has to be waited for.

One timer serves a run, which may wait for the devices before and after it, and the cells of
``%cudatime on``, which it must not disturb: there only the end events are waited for.

CUDA and ROCm, whose torch has the same names, are timed so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, sleep, thread_time
from typing import Any

from gpumagic.cuda import graphs, torch_cuda
from gpumagic.system import text
from gpumagic.timing.bottleneck import Delay, launch_delay

#: Seconds for which a wait polls; then it sleeps a thousandth of the time waited between queries.
_SPIN = 5e-3
#: Seconds between two events with no work between them, with a margin.
NO_WORK = 20e-6
#: CPU seconds that the wait for an idle device takes at most. CUDA polls while it waits, so a wait
#: is CPU time; a thread held up by other processes or by Python's lock takes none.
_IDLE_WAIT = 0.2e-3
#: Seconds that the look at a device takes at most, if nothing holds up this thread.
_HELD_UP = 0.2e-3
#: In how many timed runs each device has worked: one within another leaves no other sign there.
_timed: Counter[int] = Counter()
CAPTURE = "a CUDA graph is being captured, and the GPU may not be waited for"


@dataclass(frozen=True)
class Reading:
    """What one device did between the start and the stop."""

    #: From the start to the end of the device's last work; None where CUDA was first used on the
    #: device after the start.
    seconds: float | None
    #: Everything was already done when the host stopped.
    idle: bool
    #: There was a sign of work: it outlasted the host, memory was allocated, a context was made.
    worked: bool
    #: When the device had finished, on `time.perf_counter`'s clock.
    finished: float
    #: A delay kernel still ran when all end events were recorded: all work was queued behind it.
    queued: bool = False


def wait_for(event: Any) -> None:
    """Wait for an event, to a thousandth of the time; Ctrl-C interrupts, unlike CUDA's own wait."""
    begun = perf_counter()
    while not event.query():
        waited = perf_counter() - begun
        if waited > _SPIN:
            sleep(waited / 1000)


class _DeviceClock:
    """The events on one device; torch's objects are looked up once, for the cells of a session."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        torch = torch_cuda.c_functions()
        self._is_idle: Any = torch._CudaStreamBase.query
        self._current_handle: Any = torch._cuda_getCurrentRawStream
        self._streams = torch_cuda.streams(ordinal)
        self._by_handle = {stream.cuda_stream: stream for stream in self._streams}
        self._allocations = torch_cuda.allocations(ordinal)
        self._start = torch_cuda.timing_event(self._current())
        self._delay: Delay | None = None

    def _current(self) -> Any:
        stream = self._by_handle.get(self._current_handle(self.ordinal))
        return torch_cuda.current_stream(self.ordinal) if stream is None else stream

    def wait_until_idle(self) -> None:
        for stream in torch_cuda.busy_streams(self.ordinal):  # open to Ctrl-C
            wait_for(torch_cuda.timing_event(stream))
        torch_cuda.synchronize(self.ordinal)
        self._allocations = torch_cuda.allocations(self.ordinal)

    def start(self, delay: Delay | None) -> None:
        """Record the start event; behind a delay kernel, if ``delay`` is for this device."""
        stream = self._current()
        self._delay = delay if delay is not None and delay.ordinal == self.ordinal else None
        if self._delay is not None:
            launch_delay(self._delay, stream)
        self._timed = _timed[self.ordinal]
        self._start.record(stream)
        if self._delay is not None:
            for other in self._streams:
                if other != stream:
                    other.wait_event(self._start)

    def stop(self) -> None:
        """Record the end event on the current stream, if there is work before it.

        Else there is nothing whose end it could miss: `look` records it, where it is needed.
        """
        self._own = self._current()
        busy = not self._is_idle(self._own)
        # A stream is busy, too, where it has not reached the start event: behind earlier work, or
        # because the code took only microseconds. That is no sign of work.
        self._is_busy = busy and self._start.query() and not self._is_idle(self._own)
        self._is_unsure = busy and not self._is_busy
        self._stop = torch_cuda.timing_event(self._own) if busy else None

    def has_sign(self) -> bool:
        """Return whether there is a sign of work, without a look at other streams."""
        # The count at a cell's end is the next one's start.
        before, self._allocations = self._allocations, torch_cuda.allocations(self.ordinal)
        self._left_sign = before != self._allocations or self._timed != _timed[self.ordinal]
        return self._is_busy or self._is_unsure or self._left_sign

    def look(self) -> bool:
        """Record end events on the other busy streams; return whether there is any."""
        self._stop = self._stop or torch_cuda.timing_event(self._own)
        others = [each for each in self._streams if not self._is_idle(each)]
        self._others = [torch_cuda.timing_event(each) for each in others if each != self._own]
        # A delay that ended before all events were recorded has let some of them come too late.
        self._queued = self._delay is not None and not self._start.query()
        return bool(self._others)

    def read(self, host_start: float, host_stop: float, *, synchronizes: bool) -> Reading:
        """Wait for the end events and return what the device did.

        With ``synchronizes`` wait for the whole device, too: for streams that are not torch's.
        """
        for event in (self._stop, *self._others):
            wait_for(event)
        seconds = self._until(self._stop)
        for event in self._others:
            # Behind a delay, every stream has its events to process, which takes time too.
            if self._delay is None or self._until(event) > self._delay.empty:
                seconds = max(seconds, self._until(event))
        idle = not (self._is_busy or self._others)
        if self._is_unsure and seconds > NO_WORK:
            idle = False
        if synchronizes and self._waits_long():
            late = torch_cuda.timing_event(self._own)
            wait_for(late)
            idle, seconds = False, self._until(late)
        finished = host_stop if idle else perf_counter()
        # The host may have been delayed between the start event and its own clock; and a GPU that
        # was done when the host was has not outlasted it, whenever the event was recorded.
        seconds = min(seconds, finished - host_start)
        worked = self._left_sign or not idle
        _timed[self.ordinal] += worked
        return Reading(seconds, idle, worked, finished, self._queued)

    def _until(self, event: Any) -> float:
        return float(self._start.elapsed_time(event)) / 1e3

    def _waits_long(self) -> bool:
        before = thread_time()
        torch_cuda.synchronize(self.ordinal)
        return thread_time() - before > _IDLE_WAIT


class EventTimer:
    """A clock on every device that has a context; reusable, one start and stop at a time.

    ``prepare``, ``start``, the code, ``stop``, ``finish``. With ``disturbs`` it waits for earlier
    work before the code, and for the whole devices after it. An error of a device is not raised:
    `note` says in a line why there is no GPU time.
    """

    def __init__(self, *, disturbs: bool = True) -> None:
        self._disturbs = disturbs
        self._clocks: dict[int, _DeviceClock] = {}
        self._running: list[_DeviceClock] = []
        #: What `stop` has found: the clocks to read, and the devices first used meanwhile.
        self._worked: list[_DeviceClock] = []
        self._new: set[int] = set()
        self._relaxed = graphs.RelaxedMode()
        self.note: str | None = None

    def prepare(self) -> None:
        """Do all that takes time: make events, and wait until the devices are idle."""
        self.note = None
        self._running = []
        with self._noting():
            current = torch_cuda.current_device()
            ordinals = self._devices()
            if self._disturbs and self._captures(ordinals):
                return
            # The current device last, so that its start event is next to the code.
            for ordinal in sorted(ordinals, key=lambda each: (each == current, each)):
                if ordinal not in self._clocks:
                    self._clocks[ordinal] = _DeviceClock(ordinal)
                if self._disturbs:
                    self._clocks[ordinal].wait_until_idle()
                self._running.append(self._clocks[ordinal])

    def start(self, delay: Delay | None = None) -> None:
        """Record the start events, behind a delay kernel if there is to be one."""
        with self._noting():
            for clock in self._running:
                clock.start(delay)

    def stop(self, host_stop: float) -> float:
        """Record the end events: the host was done at ``host_stop``, the devices perhaps not.

        Where the devices are not to be disturbed, on those with a sign of work. Returns when the
        host is to be taken as done: later, if it was held up before it had looked at the devices,
        for what ended meanwhile may have outlasted the code.
        """
        self._worked, self._new = [], set()
        with self._noting():
            ordinals, current = self._devices(), torch_cuda.current_device()
            if not ordinals:
                return host_stop
            # The current device first: short code is timed by its event.
            for clock in reversed(self._running):
                clock.stop()
            new = {*ordinals} - {clock.ordinal for clock in self._running}
            signs = {clock: clock.has_sign() or self._disturbs for clock in reversed(self._running)}
            looked = [clock for clock in signs if signs[clock] or clock.ordinal == current]
            if not self._captures({*new, *(clock.ordinal for clock in looked)}):
                self._new = new
                self._worked = [clock for clock in looked if clock.look() or signs[clock]]
        now = perf_counter()
        return now if now - host_stop > _HELD_UP * len(ordinals) else host_stop

    def finish(self, host_start: float, host_stop: float) -> dict[int, Reading]:
        """Wait for the devices, and return what each did; the host ran the code between the times.

        Where the devices are not to be disturbed, of those with a sign of work.
        """
        readings: dict[int, Reading] = {}
        with self._noting():
            for clock in self._worked:
                reading = clock.read(host_start, host_stop, synchronizes=self._disturbs)
                if reading.worked or self._disturbs:
                    readings[clock.ordinal] = reading
            for ordinal in self._new:
                for stream in torch_cuda.busy_streams(ordinal):
                    wait_for(torch_cuda.timing_event(stream))
                readings[ordinal] = Reading(None, False, True, perf_counter())
            return dict(sorted(readings.items()))
        return {}

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Open a scope in the driver's relaxed mode, whose errors become the `note`."""
        try:
            with self._relaxed:
                yield
        except RuntimeError as error:
            self._running = []
            self._clocks.clear()
            self.note = f"the GPU cannot be waited for ({text.reason(error)})"

    def _devices(self) -> tuple[int, ...]:
        """Return the devices that have a context; none while this thread captures a graph."""
        ordinals = () if self.note is not None else torch_cuda.contexts()
        if torch_cuda.capturing(ordinals):
            self.note = CAPTURE
            return ()
        return ordinals

    def _captures(self, ordinals: Iterable[int]) -> bool:
        """Return whether any thread captures a graph there; takes some microseconds a device.

        Asking a capturing stream whether it is idle would end the capture.
        """
        if graphs.under_way(ordinals):
            self.note = CAPTURE
        return self.note is not None
