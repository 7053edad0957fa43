"""GPU time of a cell that is not to be disturbed: no wait before it, none for the whole device.

The first mark goes behind whatever a device's current stream has still to do for earlier cells, so
that their work is not counted twice. At the cell's end only streams that are at work get a second
mark, and only those marks are waited for: what other threads go on launching holds nobody up.

Whether a cell has used the GPU at all is known by its signs: a stream is at work at its end, or
torch's allocator has served something. A cell that only ran kernels on tensors that were there, and
waited for them itself, shows neither.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from gpumagic import torch_cuda
from gpumagic.bracket import Reading, wait_for

#: Seconds between two marks that stand one behind the other with nothing between, with a margin.
_NOTHING = 50e-6
CAPTURE = "a CUDA graph is being captured, and nobody may wait then"


class _Clock:
    """The marks on one device, one cell after the other."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._allocations = torch_cuda.allocations(ordinal)
        self._start = torch_cuda.timing_event(torch_cuda.current_stream(ordinal))
        self._after_earlier = False

    def mark_start(self) -> None:
        stream = torch_cuda.known_current_stream(self._ordinal)
        self._after_earlier = not torch_cuda.is_idle(stream)
        self._start.record(stream)

    def mark_stop(self, *, side_streams: bool) -> None:
        """Set the second marks, on each stream that is at work."""
        stream = torch_cuda.known_current_stream(self._ordinal)
        self._busy = not torch_cuda.is_idle(stream)
        # The reading at a cell's end is the next one's beginning: it takes longest of all this.
        before, self._allocations = self._allocations, torch_cuda.allocations(self._ordinal)
        self._allocated = before != self._allocations
        self._stops: list[Any] = []
        if side_streams or self._busy or self._allocated:
            busy = torch_cuda.busy_streams(self._ordinal)
            self._stops = [torch_cuda.timing_event(other) for other in busy if other != stream]
        self._side = bool(self._stops)
        if self._busy or self._side or self._allocated:
            self._stops.append(torch_cuda.timing_event(stream))

    def read(self, host_start: float, host_stop: float) -> Reading:
        if not self._stops:
            return Reading(0.0, True, False, host_stop)
        for mark in self._stops:
            wait_for(mark)
        seconds = max(self._start.elapsed_time(mark) for mark in self._stops) / 1e3
        idle = not (self._busy or self._side)
        worked = self._allocated or self._side
        if self._busy and not worked:
            # Behind an earlier cell's work, a stream is at work without any of this one's.
            worked = not self._after_earlier or seconds > _NOTHING
        # The marks themselves took time too, where nothing was left to do.
        finished = perf_counter() if worked and not idle else host_stop
        # The host may have been held up between the mark and its own clock.
        seconds = min(seconds, finished - host_start)
        return Reading(seconds, idle, worked, finished)


class Passing:
    """Marks around one cell after the other: `start`, the cell, `stop`.

    Nothing here raises because of a device: `note` says in a line what could not be measured.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, _Clock] = {}
        self._running: tuple[int, ...] = ()
        self.note: str | None = None

    def start(self) -> None:
        """The first marks."""
        self.note = None
        self._running = ()
        try:
            ordinals = self._measurable()
            for ordinal in ordinals:
                if ordinal not in self._clocks:
                    self._clocks[ordinal] = _Clock(ordinal)
                self._clocks[ordinal].mark_start()
            self._running = ordinals
        except RuntimeError as error:
            self._give_up(error)

    def stop(self, host_start: float, host_stop: float) -> dict[int, Reading]:
        """The second marks, and what each device did.

        On `time.perf_counter`'s clock the code ran between the two times.
        """
        if self.note is not None:
            return {}
        try:
            ordinals = self._measurable()
            if self.note is not None:
                return {}
            current = torch_cuda.current_device()
            for ordinal in self._running:
                self._clocks[ordinal].mark_stop(side_streams=ordinal == current)
            readings = {i: self._clocks[i].read(host_start, host_stop) for i in self._running}
            for ordinal in ordinals:
                if ordinal not in readings:  # its context was made by the cell
                    readings[ordinal] = self._first_use(ordinal)
            return dict(sorted(readings.items()))
        except RuntimeError as error:
            self._give_up(error)
            return {}

    def _first_use(self, ordinal: int) -> Reading:
        for stream in torch_cuda.busy_streams(ordinal):
            wait_for(torch_cuda.timing_event(stream))
        return Reading(None, False, True, perf_counter())

    def _measurable(self) -> tuple[int, ...]:
        ordinals = torch_cuda.contexts()
        if ordinals and torch_cuda.capturing(ordinals):
            self.note = CAPTURE
            return ()
        return ordinals

    def _give_up(self, error: RuntimeError) -> None:
        self._running = ()
        self._clocks.clear()
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        self.note = f"the GPU cannot be waited for ({reason})"
