"""GPU time between two points of a program, on every device that is in use, by CUDA events.

An event pair on the current stream misses side streams, other devices and other threads' streams.
So each device that has a context is waited for as a whole, at the start and at the end, and where
other streams outlived the current one the end is an event recorded as soon as that wait returned,
less the time that waking up takes (measured once a process). No context is ever made.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from gpumagic import torch_cuda

#: Seconds in which the events of an idle device complete. One that takes longer was at work.
_SETTLE = 20e-6

_wake_latencies: dict[int, float] = {}


@dataclass(frozen=True)
class Reading:
    """What one device did between the start and the stop."""

    #: From the start to the end of the device's last work; None where CUDA was first used on the
    #: device after the start, or the device failed.
    seconds: float | None
    #: Everything was already done when the host stopped.
    idle: bool
    #: There was a sign of work: it outlived the host, memory was allocated, a context was made.
    worked: bool
    #: When the device had finished, on `time.perf_counter`'s clock.
    finished: float


class _Clock:
    """The events of one device."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.started = False
        #: Seconds that a wait for the idle device takes.
        self.idle_wait = 0.0
        self.start_event = torch_cuda.timing_event(ordinal)
        self.stop_event = torch_cuda.timing_event(ordinal)
        self.last_event = torch_cuda.timing_event(ordinal)
        self.error: BaseException | None = None

    def _wait(self) -> float:
        before = perf_counter()
        torch_cuda.synchronize(self.ordinal)
        return perf_counter() - before

    def prepare(self) -> None:
        self.allocations = torch_cuda.allocations(self.ordinal)
        self.stream = torch_cuda.current_stream(self.ordinal)
        self.error = None
        torch_cuda.synchronize(self.ordinal)
        if not self.started:
            self.idle_wait = min(self._wait() for _ in range(3))
            self.started = True

    def finish(self, host_stop: float) -> None:
        """Wait for the device and keep what it did; runs in a thread if there are several."""
        try:
            self.reading = self._finish(host_stop)
        except BaseException as error:  # handed to the caller's thread
            self.error = error

    def _finish(self, host_stop: float) -> Reading:
        deadline = perf_counter() + _SETTLE
        idle = self.stop_event.query()
        while not idle and perf_counter() < deadline:
            idle = self.stop_event.query()
        self.stop_event.synchronize()
        # The current stream is done. If waiting for the device takes time still, others are not.
        waited = self._wait() > max(_SETTLE, 5 * self.idle_wait)
        if waited:
            self.last_event.record(torch_cuda.current_stream(self.ordinal))
        finished = perf_counter()
        seconds = None
        if self.started:
            seconds = self.start_event.elapsed_time(self.stop_event) / 1e3
            if waited:
                self.last_event.synchronize()
                last = self.start_event.elapsed_time(self.last_event) / 1e3
                seconds = max(seconds, last - _wake_latency(self.ordinal))
        done = idle and not waited
        worked = (
            not done or not self.started or torch_cuda.allocations(self.ordinal) != self.allocations
        )
        return Reading(seconds, done, worked, host_stop if done else finished)


def _wake_latency(ordinal: int) -> float:
    if ordinal not in _wake_latencies:
        _wake_latencies[ordinal] = torch_cuda.wake_latency(ordinal)
    return _wake_latencies[ordinal]


class Bracket:
    """Two marks, on every device that has a context; reusable, one start and stop at a time.

    ``prepare``, ``start``, the code, ``stop``, ``finish``. Nothing here raises because of a device:
    `notes` says in a line what could not be measured.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, _Clock] = {}
        self._running: list[_Clock] = []
        self.notes: tuple[str, ...] = ()

    def _give_up(self, error: RuntimeError) -> None:
        self._running = []
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        self.notes = (f"no GPU time: the GPU cannot be waited for ({reason})",)

    def _measurable(self) -> tuple[int, ...]:
        """The devices to measure now, the current one last; none during a graph's capture."""
        ordinals = torch_cuda.contexts()
        if ordinals and torch_cuda.capturing(ordinals):
            self.notes = ("no GPU time: a CUDA graph is being captured, and nobody may wait then",)
            return ()
        current = torch_cuda.current_device()
        return tuple(sorted(ordinals, key=lambda ordinal: (ordinal == current, ordinal)))

    def prepare(self) -> None:
        """Everything that takes time: wait until the devices are idle, make events."""
        self.notes = ()
        self._running = []
        try:
            for ordinal in self._measurable():
                clock = self._clocks.get(ordinal) or _Clock(ordinal)
                self._clocks[ordinal] = clock
                clock.prepare()
                self._running.append(clock)
        except RuntimeError as error:
            self._give_up(error)

    def start(self) -> None:
        """The first mark."""
        try:
            for clock in self._running:
                clock.start_event.record(clock.stream)
        except RuntimeError as error:
            self._give_up(error)

    def stop(self) -> None:
        """The second mark: the host is done, the devices perhaps not."""
        try:
            # The current device first here: its mark is the one that short code is timed by.
            for clock in reversed(self._running):
                clock.stop_event.record(torch_cuda.current_stream(clock.ordinal))
        except RuntimeError as error:
            self._give_up(error)

    def finish(self, host_stop: float) -> dict[int, Reading]:
        """Wait for all devices at once, and read what each did."""
        if self.notes:
            return {}
        try:
            clocks = []
            for ordinal in self._measurable():
                clock = self._clocks.get(ordinal)
                if clock not in self._running:
                    clock = _Clock(ordinal)  # its context was made after the start
                clocks.append(clock)
            if self.notes:  # a capture has begun meanwhile
                return {}
            return self._wait_for(clocks, host_stop)
        except RuntimeError as error:
            self._give_up(error)
            return {}

    def _wait_for(self, clocks: list[Any], host_stop: float) -> dict[int, Reading]:
        # Waiting for one device after another would make the second's end the first one's.
        threads = [
            threading.Thread(target=clock.finish, args=(host_stop,), daemon=True)
            for clock in clocks[:-1]
        ]
        for thread in threads:
            thread.start()
        for clock in clocks[-1:]:
            clock.finish(host_stop)
        for thread in threads:
            thread.join()
        for clock in clocks:
            if clock.error is not None:
                raise clock.error
        return {clock.ordinal: clock.reading for clock in sorted(clocks, key=lambda c: c.ordinal)}
