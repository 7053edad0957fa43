"""GPU time between two points of a program, on every device that is in use, by CUDA events.

An event pair on the current stream misses side streams, other devices and other threads' streams.
So the first mark is set on each device that has a context, once it is idle, and the second on each
of its streams that is still at work. Streams that are not torch's cannot be found: a mark behind
all work of the device tells whether one of them took longer. No context is ever made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import Any

from gpumagic.cuda import graph_capture, torch_cuda
from gpumagic.system import text
from gpumagic.timing import context_event, launch_overhead

#: Seconds for which a wait asks again and again; then it sleeps a thousandth of what has passed.
_SPIN = 5e-3
#: Seconds that two marks may be apart with nothing between them.
_NOTHING = 10e-6


@dataclass(frozen=True)
class Reading:
    """What one device did between the start and the stop."""

    #: From the start to the end of the device's last work; None where CUDA was first used on the
    #: device after the start.
    seconds: float | None
    #: Everything was already done when the host stopped.
    idle: bool
    #: There was a sign of work: it outlived the host, memory was allocated, a context was made.
    worked: bool
    #: When the device had finished, on `time.perf_counter`'s clock.
    finished: float
    #: The device was held, and still was when all marks were set: all work was queued beforehand.
    held: bool = False
    #: A stream that is not torch's was at work last.
    foreign: bool = False
    #: Seconds from the first mark to that on each stream, by the stream's handle.
    marks: Mapping[int, float] = field(default_factory=dict)


class _Clock:
    """The marks on one device."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.stream = torch_cuda.current_stream(ordinal)
        self.start = torch_cuda.timing_event(self.stream)
        self.stop = torch_cuda.timing_event(self.stream)
        self.idle = True
        self.held = False
        self.nothing: Mapping[int, float] = {}

    def prepare(self) -> None:
        torch_cuda.streams(self.ordinal)
        self.allocations = torch_cuda.allocations(self.ordinal)
        self.stream = torch_cuda.current_stream(self.ordinal)
        for stream in torch_cuda.busy_streams(self.ordinal):  # open to Ctrl-C
            wait_for(torch_cuda.timing_event(stream))
        torch_cuda.synchronize(self.ordinal)

    def mark_start(self, hold: launch_overhead.Hold | None) -> None:
        """Set the first mark; after the hold, if this device is to be held."""
        self.held = hold is not None and hold.ordinal == self.ordinal
        self.nothing = {}
        if hold is not None and self.held:
            self.nothing = hold.nothing
            launch_overhead.hold(hold, self.stream)
        self.start.record(self.stream)
        if self.held:
            launch_overhead.let_wait(self.ordinal, self.start, self.stream)

    def mark_current_stream(self) -> None:
        """Set the second mark where it counts most, and see whether there is work before it."""
        stream = torch_cuda.current_stream(self.ordinal)
        # Quick code is over before the first mark has been passed, and that is no work of its own.
        self.begun = self.held or self.start.query()
        self.idle = stream.query()
        self.stop.record(stream)
        self.own = stream

    def mark_busy_streams(self) -> None:
        """Set the second mark on the other streams too, and one behind all work there is."""
        self.whole = None if self.held else context_event.Mark(self.ordinal)
        # With nothing before it, the mark itself is what keeps the current stream busy.
        busy = torch_cuda.busy_streams(self.ordinal)
        if self.idle or self.held or not self.begun:
            busy = [stream for stream in busy if stream != self.own]
        if self.whole is not None and self.whole.known:
            busy = [stream for stream in busy if stream != self.whole.stream]
        self.others = [(stream, torch_cuda.timing_event(stream)) for stream in busy]
        self.idle = self.idle and not busy
        # A hold that ended before all marks were set has let some of them come too late.
        self.held = self.held and not self.start.query()

    def read(self, host_start: float, host_stop: float) -> Reading:
        marks = [(self.own, self.stop), *self.others]
        for _, mark in marks:
            wait_for(mark)
        foreign = self._foreign_mark()
        marks += foreign
        self.idle = self.idle and not foreign
        torch_cuda.synchronize(self.ordinal)
        finished = perf_counter()
        passed: dict[int, float] = {}
        for stream, mark in marks:
            seconds = self.start.elapsed_time(mark) / 1e3
            passed[stream.cuda_stream] = max(seconds, passed.get(stream.cuda_stream, 0.0))
        seconds = max(s for handle, s in passed.items() if self._counts(handle, s))
        if not self.begun and seconds <= _NOTHING:
            self.idle = True
        worked = not self.idle or torch_cuda.allocations(self.ordinal) != self.allocations
        if self.idle:  # the marks themselves took time too
            finished = host_stop
        # The first mark came before the host's clock started.
        seconds = min(seconds, finished - host_start)
        return Reading(seconds, self.idle, worked, finished, self.held, bool(foreign), passed)

    def _foreign_mark(self) -> list[tuple[Any, Any]]:
        """A mark behind the streams that are not torch's, if they outlive torch's; else none."""
        mark = self.whole or context_event.Mark(
            self.ordinal
        )  # behind a hold no stream was idle before
        if mark.known:
            if not mark.outlives():
                return []
            wait_for(mark.end)
            return [(mark.stream, mark.end)]
        if not context_event.waited_long(self.ordinal):
            return []
        late = torch_cuda.timing_event(self.own)
        late.synchronize()
        return [(self.own, late)]

    def _counts(self, handle: int, seconds: float) -> bool:
        """Whether a stream's mark tells of work, and not only of its own passing."""
        nothing = self.nothing.get(handle)
        own = handle == self.own.cuda_stream
        return own or nothing is None or seconds > nothing + 2 * launch_overhead.RESOLUTION


def wait_for(event: Any) -> None:
    """Wait as exactly as the wait so far is long, and open to Ctrl-C, which CUDA's own is not."""
    begun = perf_counter()
    while not event.query():
        waited = perf_counter() - begun
        if waited > _SPIN:
            sleep(waited / 1000)


class Bracket:
    """Two marks on every device that has a context; reusable, one start and stop at a time.

    ``prepare``, ``start``, the code, ``stop``, ``finish``. Nothing here raises because of a device:
    `notes` says in a line what could not be measured.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, _Clock] = {}
        self._running: list[_Clock] = []
        self._harmless = graph_capture.Harmless()
        self.notes: tuple[str, ...] = ()

    def _give_up(self, error: RuntimeError) -> None:
        self._running = []
        self.notes = (f"no GPU time: the GPU cannot be waited for ({text.reason(error)})",)

    def _measurable(self) -> tuple[int, ...]:
        """The devices to measure now, the current one last; none during a graph's capture."""
        ordinals = torch_cuda.contexts()
        if graph_capture.under_way(ordinals):
            self.notes = ("no GPU time: a CUDA graph is being captured, and nobody may wait then",)
            return ()
        current = torch_cuda.current_device()
        return tuple(sorted(ordinals, key=lambda ordinal: (ordinal == current, ordinal)))

    def prepare(self) -> None:
        """Everything that takes time: wait until the devices are idle, make events."""
        self.notes = ()
        self._running = []
        try:
            ordinals = self._measurable()
            with self._harmless:
                for ordinal in ordinals:
                    clock = self._clocks.get(ordinal) or _Clock(ordinal)
                    self._clocks[ordinal] = clock
                    clock.prepare()
                    self._running.append(clock)
        except RuntimeError as error:
            self._give_up(error)

    def start(self, hold: launch_overhead.Hold | None = None) -> None:
        """The first mark, behind a hold if there is to be one."""
        try:
            for clock in self._running:
                clock.mark_start(hold)
        except RuntimeError as error:
            self._give_up(error)

    def stop(self) -> None:
        """The second mark: the host is done, the devices perhaps not."""
        try:
            # The current device first here: its mark is the one that short code is timed by.
            with self._harmless:
                for clock in reversed(self._running):
                    clock.mark_current_stream()
        except RuntimeError as error:
            self._give_up(error)

    def finish(self, host_start: float, host_stop: float) -> dict[int, Reading]:
        """Wait for all devices, and read what each did."""
        if self.notes:
            return {}
        try:
            ordinals = self._measurable()
            if self.notes:  # a capture has begun meanwhile
                return {}
            with self._harmless:
                return self._read(ordinals, host_start, host_stop)
        except RuntimeError as error:
            self._give_up(error)
            return {}

    def _read(
        self, ordinals: tuple[int, ...], host_start: float, host_stop: float
    ) -> dict[int, Reading]:
        for clock in self._running:
            clock.mark_busy_streams()
        readings = {clock.ordinal: clock.read(host_start, host_stop) for clock in self._running}
        for ordinal in ordinals:
            if ordinal not in readings:  # its context was made after the start
                torch_cuda.synchronize(ordinal)
                readings[ordinal] = Reading(None, False, True, perf_counter())
        return dict(sorted(readings.items()))
