"""Marks: events on all streams in use at one moment, and when all work before a mark had finished.

A mark is recorded without waiting, on the current stream of every device in use and on each other
stream that has been made current and is busy. A device's work before a mark has finished when the
last of the mark's events is reached, or that of an earlier mark: so times of successive marks never
decrease, and the difference of two is counted once, whatever ran side by side. Streams of torch's
own C++ code become known by looking at all of them now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeAlias

from gpumagic.cuda import graph_capture, torch_cuda

#: Seconds between two looks at all streams of torch's, at least; more where a look, which takes
#: about 0.1 ms a device, would take more than a part of the time; and at most.
_LOOK_INTERVAL, _LOOK_PART, _LONGEST_INTERVAL = 20e-3, 0.003, 100e-3
#: Seconds after which times are counted from a later event: CUDA returns them with 24 bits.
_REBASE = 1.0
#: The events that each device has from the beginning.
_FIRST_EVENTS = 256

#: Events, by device in the order in which the devices came into use.
Mark: TypeAlias = list[list[Any]]


class _DeviceMarks:
    """The streams in use on one device, and the time of the marks on it."""

    def __init__(self, ordinal: int, started: float | None = None) -> None:
        """Count the time from now on; ``started`` is when that of the other devices began."""
        self.ordinal = ordinal
        self._c = torch_cuda.c_functions()
        self._streams = {stream.cuda_stream: stream for stream in torch_cuda.streams(ordinal)}
        # torch's own functions, without those in Python around them: a mark is short work.
        self._is_idle: Callable[[Any], bool] = self._c._CudaStreamBase.query
        self._is_past: Callable[[Any], bool] = self._c._CudaEventBase.query
        self._record_event: Callable[[Any, Any], None] = self._c._CudaEventBase.record
        self._elapsed: Callable[[Any, Any], float] = self._c._CudaEventBase.elapsed_time
        self._current_handle: Callable[[int], int] = self._c._cuda_getCurrentRawStream
        #: Streams that have been current or busy, by handle; and the default stream.
        self.known = {0: self._streams[0]}
        #: Asks the known streams whether they are capturing; None until it is made for them.
        self._capturing: graph_capture.CaptureQuery | None = None
        self._free: list[Any] = []
        #: The stream that was current when the last mark was prepared.
        self._stream = current = self._current()
        self._base = torch_cuda.timing_event(current)
        # Only now: what was done before takes milliseconds on a device that has come into use.
        began = 0.0 if started is None else perf_counter() - started
        self._base_seconds = began
        self._base_is_reached = False
        #: Seconds, from the timer's start to the end of all work before the last mark read.
        self.seconds = began

    def make_events(self) -> None:
        """Make the events of the first marks: CUDA makes each at its first recording."""
        self._free = [torch_cuda.timing_event(self._stream) for _ in range(_FIRST_EVENTS)]

    def begin(self) -> None:
        """Count the time from now on."""
        self._base.record(self._current())

    def _current(self) -> Any:
        handle = self._current_handle(self.ordinal)
        stream = self.known.get(handle)
        if stream is None:
            stream = self._streams.get(handle) or torch_cuda.current_stream(self.ordinal)
            self.add(handle, stream)
        return stream

    def add(self, handle: int, stream: Any = None) -> None:
        """Record events on this stream, too, from now on."""
        if handle not in self.known:
            stream = stream or self._streams.get(handle)
            if stream is not None:
                self.known[handle] = stream
                self._capturing = None

    def prepare(self) -> bool:
        """Prepare a mark; return False while a graph is captured on a stream in use."""
        stream = self.known.get(self._current_handle(self.ordinal))
        self._stream = self._current() if stream is None else stream
        if len(self.known) == 1:  # the default stream, which cannot be captured
            return True
        if self._capturing is None:
            self._capturing = graph_capture.CaptureQuery([*self.known.values()])
        return not self._capturing()  # streams may not be queried then

    def look(self) -> None:
        """Add the streams that are busy."""
        if not graph_capture.query(self.ordinal)():
            for handle, stream in self._streams.items():
                if handle not in self.known and not self._is_idle(stream):
                    self.add(handle, stream)

    def record(self) -> list[Any]:
        """Return events behind all work that is queued now, on streams in use."""
        if self._free:  # as `_event`, without a call
            event = self._free.pop()
            self._record_event(event, self._stream)
            events = [event]
        else:
            events = [torch_cuda.timing_event(self._stream)]
        if len(self.known) > 1:
            for stream in [*self.known.values()]:  # another thread may add one
                if stream is not self._stream and not self._is_idle(stream):
                    events.append(self._event(stream))
        return events

    def _event(self, stream: Any) -> Any:
        if not self._free:
            return torch_cuda.timing_event(stream)
        event = self._free.pop()
        self._record_event(event, stream)
        return event

    def is_reached(self, events: list[Any]) -> bool:
        """Return whether the events are reached, and the one from which time is counted."""
        if not self._base_is_reached:
            self._base_is_reached = self._is_past(self._base)
            if not self._base_is_reached:
                return False
        if len(events) == 1:  # as mostly, and in less than half the time
            return self._is_past(events[0])
        return all(map(self._is_past, events))

    def read(self, events: list[Any]) -> float:
        """Return `seconds` for a mark whose events have been reached, and reuse them."""
        passed = [self._elapsed(self._base, event) / 1e3 for event in events]
        longest = max(passed)
        self.seconds = max(self.seconds, self._base_seconds + longest)
        if longest > _REBASE:
            last = events.pop(passed.index(longest))
            self._free.append(self._base)
            self._base, self._base_seconds = last, self._base_seconds + longest
        self._free += events
        return self.seconds


def _is_idle(ordinal: int) -> bool:
    """Return whether no stream of torch's on a device has work."""
    is_idle = torch_cuda.c_functions()._CudaStreamBase.query
    return all(map(is_idle, torch_cuda.streams(ordinal)))


class StreamMarks:
    """Records marks on all devices in use, and reads them in the order of recording."""

    def __init__(self) -> None:
        self._devices: list[_DeviceMarks] = []
        self._relaxed = graph_capture.RelaxedMode()
        self._set_stream: Any = None
        self._last: Mark | None = None
        #: The devices without a context, once CUDA is in use.
        self._absent: list[int] = []
        self._has_context: Callable[[int], bool] | None = None

    def start(self) -> None:
        """Prepare the devices that have a context; follow the streams made current."""
        self._add_devices()
        for device in self._devices:
            device.make_events()

    def begin(self) -> None:
        """Count the time from now on, on devices that are idle."""
        self._began = perf_counter()
        self._next_look = self._began + _LOOK_INTERVAL
        for device in self._devices:
            device.begin()

    def stop(self) -> None:
        """Stop following the streams made current."""
        torch_c = torch_cuda.c_functions()
        # Where another wrapper is around ours, ours stays and only passes calls on.
        if self._set_stream is not None and torch_c._cuda_setStream is self._set_stream:
            torch_c._cuda_setStream = self._set_stream.__wrapped__
        self._set_stream = None

    def release(self) -> None:
        """Free the events; nothing can be recorded after that."""
        self._devices.clear()
        self._last = None

    def _watch_set_stream(self) -> None:
        torch_c = torch_cuda.c_functions()
        original = torch_c._cuda_setStream

        def set_stream(*arguments: Any, **named: Any) -> Any:
            done = original(*arguments, **named)
            if self._set_stream is set_stream:
                for device in self._devices:
                    device.add(torch_c._cuda_getCurrentRawStream(device.ordinal))
            return done

        set_stream.__wrapped__ = original  # type: ignore[attr-defined]
        self._set_stream = torch_c._cuda_setStream = set_stream

    def _add_devices(self, started: float | None = None) -> bool:
        """Add the devices that have come into use since ``started``, each once it is idle.

        Return whether all are added. When the work ends that a device began with is not known.
        """
        in_use = torch_cuda.contexts()
        if not in_use or graph_capture.under_way(in_use):
            return not in_use
        if self._set_stream is None:
            self._watch_set_stream()
        new = [i for i in in_use if i not in self.ordinals]
        ready = [i for i in new if started is None or _is_idle(i)]
        self._devices += [_DeviceMarks(i, started) for i in ready]
        torch_c = torch_cuda.c_functions()
        self._has_context = torch_c._cuda_hasPrimaryContext
        self._absent = [i for i in range(torch_c._cuda_getDeviceCount()) if i not in self.ordinals]
        return len(ready) == len(new)

    @property
    def ordinals(self) -> tuple[int, ...]:
        """The devices in use, in the order in which they came into use."""
        return tuple(device.ordinal for device in self._devices)

    def record(self) -> tuple[Mark, bool, float] | None:
        """Record a mark, and return whether the last one may have been reached before.

        And when it is recorded, by `perf_counter`.

        None where there is no device in use, a device that has come into use is still busy, or a
        graph is being captured.

        Raises:
            RuntimeError: a device fails.
        """
        with self._relaxed:
            now = perf_counter()
            has_context, absent = self._has_context, self._absent
            is_new = has_context is None or (absent and any(map(has_context, absent)))
            if is_new and not self._add_devices(self._began):
                return None
            devices = self._devices
            if not devices:
                return None
            for device in devices:
                if not device.prepare():
                    return None
            if now > self._next_look:
                for device in devices:
                    device.look()
                took = perf_counter() - now
                after = min(max(took / _LOOK_PART, _LOOK_INTERVAL), _LONGEST_INTERVAL)
                self._next_look = now + after
            last, recorded = self._last, perf_counter()
            mark = self._last = [*map(_DeviceMarks.record, devices)]
            # Asked afterwards: this process may be held up meanwhile, and the GPU become idle.
            is_idle = last is None or all(map(_DeviceMarks.is_reached, devices, last))
            return mark, is_idle, recorded

    def is_reached(self, mark: Mark) -> bool:
        """Return whether all work before the mark has finished."""
        with self._relaxed:
            return all(map(_DeviceMarks.is_reached, self._devices, mark))

    def read(self, mark: Mark) -> tuple[float, ...]:
        """Return by device in use the seconds from the start to the end of all work before a mark.

        Only for a mark that is reached, and in the order of recording.
        """
        with self._relaxed:
            devices = zip(self._devices, mark, strict=False)
            return tuple(device.read(events) for device, events in devices)
