"""GPU time without launch overhead: everything is queued behind a delay kernel.

The host queues the code's work while the delay kernel keeps the device busy; then the device works
without gaps. The kernel is torch's own ``torch.cuda._sleep``, which ends by itself, so code that
synchronises cannot hang: it waits until the delay ends, and is detected by that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

from gpumagic.cuda import torch_cuda

#: Seconds that a delay kernel runs at most.
LONGEST = 1.0
#: The delay is so much longer than the host needed last time: (a factor, and seconds more, in which
#: events are recorded on the streams).
_MARGIN = 1.5, 3e-3
#: GPU seconds that a sample should have, and loops at most: a stream's queue holds some 1,000
#: launches, and a host that finds it full waits.
_LEAST_SAMPLE, _MOST_LOOPS = 1e-3, 100
#: Samples in a row that may fail.
_ATTEMPTS = 5

TOO_LONG = "the host takes too long to queue the code"
WAITS = "the code waits for the GPU inside, or queues more than the GPU's queue holds"

#: Seconds that two events may be apart with no work between them.
NO_WORK = 10e-6
#: Seconds after which a device that was idle has raised its clock.
_CLOCK_UP = 0.05

#: Cycles of ``torch.cuda._sleep`` in a second, by ordinal.
_rates: dict[int, float] = {}


@dataclass(frozen=True)
class Delay:
    """A device to keep busy by a delay kernel, and for how many seconds."""

    ordinal: int
    seconds: float
    #: Seconds from the start event to a stream's end event with no work between them, by the
    #: stream's handle: behind a delay every stream has its events to process, which takes time too.
    empty: Mapping[int, float] = field(default_factory=dict)


def launch_delay(delay: Delay, stream: Any) -> None:
    """Launch the delay kernel on ``stream``."""
    _spin(delay.ordinal, stream, round(delay.seconds * _rate(delay.ordinal, stream)))


def make_other_streams_wait(ordinal: int, event: Any, stream: Any) -> None:
    """Make the device's other streams wait for ``event``, which was recorded on ``stream``."""
    for other in torch_cuda.streams(ordinal):
        if other != stream:
            other.wait_event(event)


def _spin(ordinal: int, stream: Any, cycles: int) -> None:
    cuda = cast(Any, torch_cuda.loaded()).cuda
    with cuda.device(ordinal), cuda.stream(stream):
        cuda._sleep(cycles)


def _rate(ordinal: int, stream: Any) -> float:
    """Measure the cycles in a second: the clock that counts them differs between devices."""
    if ordinal not in _rates:
        # The clock of an idle device is slow: a delay measured by it would end too soon.
        until = perf_counter() + _CLOCK_UP
        while perf_counter() < until:
            _spin_time(ordinal, stream, 1_000_000)
        cycles = 100_000
        while (seconds := _spin_time(ordinal, stream, cycles)) < 1e-3 and cycles < 1e9:
            cycles *= 4
        again = [_spin_time(ordinal, stream, cycles) for _ in range(2)]
        _rates[ordinal] = cycles / min([seconds, *again])
    return _rates[ordinal]


def _spin_time(ordinal: int, stream: Any, cycles: int) -> float:
    start = torch_cuda.timing_event(stream)
    _spin(ordinal, stream, cycles)
    end = torch_cuda.timing_event(stream)
    end.synchronize()
    return max(float(start.elapsed_time(end)) / 1e3, 1e-9)


class QueuedSampling:
    """How to take queued samples, or why there are none. Uses no device.

    As long as ``delay`` is not None, run ``loops`` loops behind that delay and report the sample
    with `add`. ``loop_time`` is what a loop took as run, ``host_time`` its host time,
    ``empty_time`` the most that an empty queued sample takes on the current stream, ``empty`` the
    same for each stream.
    """

    def __init__(
        self,
        ordinal: int,
        loop_time: float,
        host_time: float,
        loops: int,
        empty_time: float = 0.0,
        empty: Mapping[int, float] | None = None,
    ) -> None:
        self.ordinal = ordinal
        self._host_time = host_time
        self._empty_time = empty_time
        self._empty = empty or {}
        self._failures = 0
        #: GPU seconds per loop, with everything queued beforehand.
        self.samples: list[float] = []
        #: GPU seconds per loop from the end of the delay, where the host had not queued everything
        #: by then: at least what the GPU needs.
        self.upper_bounds: list[float] = []
        #: Why there are no queued samples.
        self.unavailable: str | None = None
        self.delay: Delay | None = None
        #: Whether the delay kernels delayed streams that are not torch's too: else what those did
        #: is not in the samples.
        self.holds_all = True
        wanted = math.ceil(_LEAST_SAMPLE / max(loop_time, 1e-9))
        self._plan(max(1, min(wanted, loops, _MOST_LOOPS)))

    def _plan(self, loops: int, factor: float = 1.0) -> None:
        def needed() -> float:
            return factor * (_MARGIN[0] * self._host_time * loops + _MARGIN[1])

        while loops > 1 and needed() > LONGEST:
            loops //= 2
        self.loops = loops
        if needed() <= LONGEST:
            self.delay = Delay(self.ordinal, needed(), self._empty)
        else:
            self.stop(TOO_LONG if self._failures == 0 else WAITS)

    def add(self, gpu: float | None, *, queued: bool, holds_all: bool = True) -> None:
        """Add a sample: GPU seconds of all loops; ``queued`` if the delay outlasted the host.

        ``holds_all`` if streams that are not torch's were delayed too.
        """
        self.holds_all = self.holds_all and holds_all
        if gpu is None:
            self.stop("there is no GPU time")
        elif queued:
            self.samples.append(gpu / self.loops)
            self._failures = 0
        else:
            self.upper_bounds.append(gpu / self.loops)
            self._failures += 1
            self._after_failure()

    def _after_failure(self) -> None:
        if self._failures >= _ATTEMPTS:
            self.stop(WAITS)
        elif not self.samples:  # else the host was delayed once
            # The host may have been slow, or the queue full.
            tries = ((self.loops, 3.0), (self.loops // 10, 3.0), (1, 9.0), (1, 27.0))
            loops, factor = tries[self._failures - 1]
            self._plan(max(1, loops), factor)

    @property
    def no_gpu_work(self) -> bool:
        """Whether the samples show no work on the GPU.

        Work on a stream that is not torch's, and that an older driver cannot delay, is not in them.
        """
        if not self.samples:
            return False
        least = self._empty_time + 2 * torch_cuda.EVENT_RESOLUTION
        return statistics.median(self.samples) * self.loops < least

    @property
    def shows_work(self) -> bool:
        """Whether the samples show that the code gave the GPU work."""
        least = self._empty_time + NO_WORK
        return bool(self.samples) or any(bound * self.loops > least for bound in self.upper_bounds)

    def time_is_over(self) -> None:
        """Take no more samples; if there are none, they took too long."""
        self.stop(WAITS if self._failures else TOO_LONG)

    def stop(self, reason: str) -> None:
        """Take no more samples; if there are none, ``reason`` is why."""
        self.delay = None
        if not self.samples:
            self.unavailable = reason
