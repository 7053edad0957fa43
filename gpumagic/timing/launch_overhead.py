"""Code run behind a kernel that only waits: its GPU time without the time that launching takes.

The host queues everything while the device is held; then the device works without gaps. The kernel
is torch's own ``torch.cuda._sleep`` and ends by itself, so code that waits for the device cannot
hang: it waits as long as the hold, and that is how it is found out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

from gpumagic.cuda import torch_cuda

#: Seconds that a device is held at most.
LONGEST = 1.0
#: The hold is so much longer than the host needed last time: (a factor, and seconds more, in which
#: the streams are marked).
_MARGIN = 1.5, 3e-3
#: GPU seconds that a sample should have, and loops at most: a stream's queue holds some 1,000
#: launches, and a host that finds it full waits.
_WORTH_READING, _MOST_LOOPS = 1e-3, 100
#: Samples in a row that may fail.
_ATTEMPTS = 5
#: Seconds that two CUDA events cannot tell apart (cudaEventElapsedTime's documentation).
RESOLUTION = 0.5e-6

TOO_LONG = "the host takes too long to queue the code"
WAITS = "the code waits for the GPU inside, or queues more than the GPU's queue holds"

#: Seconds after which a device that had nothing to do has its clock up.
_CLOCK_UP = 0.05

#: Cycles of ``torch.cuda._sleep`` in a second, by ordinal.
_rates: dict[int, float] = {}


@dataclass(frozen=True)
class Hold:
    """A device, and how many seconds it is to be held."""

    ordinal: int
    seconds: float
    #: Seconds that the mark on a stream shows where there is nothing to do, by the stream's handle:
    #: behind a hold every stream has its mark to pass, and that takes time too.
    nothing: Mapping[int, float] = field(default_factory=dict)


def hold(which: Hold, stream: Any) -> None:
    """Let everything that is queued on ``stream`` from now on wait so long."""
    _spin(which.ordinal, stream, round(which.seconds * _rate(which.ordinal, stream)))


def let_wait(ordinal: int, event: Any, stream: Any) -> None:
    """Let the device's other streams wait for ``event``, which was recorded on ``stream``."""
    for other in torch_cuda.streams(ordinal):
        if other != stream:
            other.wait_event(event)


def _spin(ordinal: int, stream: Any, cycles: int) -> None:
    cuda = cast(Any, torch_cuda.loaded()).cuda
    with cuda.device(ordinal), cuda.stream(stream):
        cuda._sleep(cycles)


def _rate(ordinal: int, stream: Any) -> float:
    """Cycles in a second, measured: the clock that counts them is not the same on every device."""
    if ordinal not in _rates:
        # A device at rest counts slowly, and a hold that was measured by that would end too soon.
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


class Probe:
    """Decides how to take queued samples, and why there are none: no device is touched here.

    As long as ``hold`` is not None, run ``loops`` loops behind that hold and hand over what came of
    it with `take`. ``loop_time`` is what a loop took as run, ``host_time`` what it kept the host,
    ``marks`` what a queued sample of nothing takes at most, ``nothing`` what it takes by stream.
    """

    def __init__(
        self,
        ordinal: int,
        loop_time: float,
        host_time: float,
        loops: int,
        marks: float = 0.0,
        nothing: Mapping[int, float] | None = None,
    ) -> None:
        self._ordinal = ordinal
        self._host_time = host_time
        self._marks = marks
        self._nothing = nothing or {}
        self._failures = 0
        #: GPU seconds per loop, with everything queued beforehand.
        self.samples: list[float] = []
        #: GPU seconds per loop from the end of the hold, where the host had not queued everything
        #: by then: at least what the GPU needs.
        self.bounds: list[float] = []
        #: Why there can be no queued samples.
        self.refusal: str | None = None
        self.hold: Hold | None = None
        wanted = math.ceil(_WORTH_READING / max(loop_time, 1e-9))
        self._plan(max(1, min(wanted, loops, _MOST_LOOPS)))

    def _plan(self, loops: int, patience: float = 1.0) -> None:
        def needed() -> float:
            return patience * (_MARGIN[0] * self._host_time * loops + _MARGIN[1])

        while loops > 1 and needed() > LONGEST:
            loops //= 2
        self.loops = loops
        if needed() <= LONGEST:
            self.hold = Hold(self._ordinal, needed(), self._nothing)
        else:
            self.refuse(TOO_LONG if self._failures == 0 else WAITS)

    def take(self, gpu: float | None, *, held: bool) -> None:
        """A sample: GPU seconds of all loops; ``held``: until the host had queued everything."""
        if gpu is None:
            self.refuse("there is no GPU time")
        elif held:
            self.samples.append(gpu / self.loops)
            self._failures = 0
        else:
            self.bounds.append(gpu / self.loops)
            self._failures += 1
            self._after_failure()

    def _after_failure(self) -> None:
        if self._failures >= _ATTEMPTS:
            self.refuse(WAITS)
        elif not self.samples:  # else something held up the host for once
            # Perhaps the host was slow, perhaps the queue was full.
            tries = ((self.loops, 3.0), (self.loops // 10, 3.0), (1, 9.0), (1, 27.0))
            loops, patience = tries[self._failures - 1]
            self._plan(max(1, loops), patience)

    @property
    def shows_nothing(self) -> bool:
        """Whether the samples show that the code gave the GPU nothing to do."""
        if not self.samples:
            return False
        least = self._marks + 2 * RESOLUTION
        return statistics.median(self.samples) * self.loops < least

    def stop(self) -> None:
        """Take no more samples; if there are none, they took too long."""
        self.refuse(WAITS if self._failures else TOO_LONG)

    def refuse(self, why: str) -> None:
        """Take no more samples; there are none because of ``why``."""
        self.hold = None
        if not self.samples:
            self.refusal = why
