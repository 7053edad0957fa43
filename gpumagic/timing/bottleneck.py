"""What limits code, the GPU or the host that launches its work: the verdict and its evidence.

Where the runs do not show it, some are queued behind a delay kernel that outlasts the host: then
the GPU works without gaps, and its time is compared with that as run. The kernel is torch's own
``torch.cuda._sleep``, which ends by itself: code that synchronises cannot hang.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.results.timing import Bound

#: GPU time after the host has finished, as a part of all GPU time: from here on it is surely the
#: larger part.
_CLEARLY_LATER = 0.5
#: The GPU time with launch overhead hidden, as a part of that as run: host-bound below the first,
#: GPU-bound from the second on, and neither clearly in between.
_HOST_BOUND, _GPU_BOUND = 0.8, 0.9
#: The delay is so much longer than the host needed: (a factor, and seconds more, in which events
#: are recorded on the streams); and no longer than this.
_MARGIN, _LONGEST = (2.0, 3e-3), 1.0
#: GPU seconds that a queued run should have, and loops at most: a stream's queue holds some 1,000
#: launches, and a host that finds it full waits.
_LEAST_SAMPLE, _MOST_LOOPS = 1e-3, 100
#: Queued runs.
SAMPLES = 3
#: Cycles of the kernel that is timed for the rate.
_CYCLES = 2_000_000
#: Cycles of ``torch.cuda._sleep`` in a second, by ordinal.
_rates: dict[int, float] = {}


def gpu_outlasts_host(gpu: Sequence[float], host: Sequence[float]) -> str | None:
    """Return how it is known that the GPU limits the code; None if the runs do not show it.

    In most of them over half of the GPU time came after the host had finished.
    """
    later = [g - h >= _CLEARLY_LATER * g > 0 for g, h in zip(gpu, host, strict=True)]
    if 2 * sum(later) <= len(gpu):
        return None
    alone = statistics.median((g - h) / g for g, h in zip(gpu, host, strict=True) if g > 0)
    return f"the GPU still worked for {alone * 100:.0f} % of its time after Python returned"


def queued_loops(loop_time: float, host_time: float, loops: int) -> int:
    """Return how many loops a queued run should have; 0 where no delay is long enough for one.

    ``loop_time`` is what a loop took as run, ``host_time`` its host time.
    """
    wanted = math.ceil(_LEAST_SAMPLE / max(loop_time, 1e-9))
    possible = int((_LONGEST - _MARGIN[1]) / _MARGIN[0] / max(host_time, 1e-9))
    return min(wanted, possible, loops, _MOST_LOOPS)


def delay(ordinal: int, host_time: float, empty: float = 0.0) -> Delay:
    """Return a delay that outlasts ``host_time`` seconds of the host."""
    return Delay(ordinal, _MARGIN[0] * host_time + _MARGIN[1], empty)


def judge(queued: Sequence[float], as_run: float) -> tuple[Bound | None, str | None]:
    """Return what limits the code, and how that is known.

    By the GPU seconds per loop of queued runs, and of the fastest run: what a busy machine adds to
    the others is no time of the code.
    """
    if not queued or as_run <= 0:
        return None, None
    part = statistics.median(queued) / as_run
    percent = f"{part * 100:.0f} %" if part >= 0.005 else "< 1 %"
    evidence = f"launched beforehand, the same work takes the GPU {percent} of its best time"
    if part >= 1:
        evidence = "launched beforehand, the same work takes the GPU as long"
    if part < _HOST_BOUND:
        return "host", evidence
    return ("gpu", evidence) if part >= _GPU_BOUND else (None, None)


# --- the delay kernel ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Delay:
    """A device to keep busy, and for how many seconds."""

    ordinal: int
    seconds: float
    #: The most seconds from the start event to another stream's end event with no work between.
    empty: float = 0.0


def launch_delay(delay: Delay, stream: Any) -> None:
    """Launch the delay kernel on ``stream``."""
    _spin(delay.ordinal, stream, round(delay.seconds * _rate(delay.ordinal, stream)))


def _spin(ordinal: int, stream: Any, cycles: int) -> None:
    cuda = cast(Any, torch_cuda.loaded()).cuda
    with cuda.device(ordinal), cuda.stream(stream):
        cuda._sleep(cycles)


def _rate(ordinal: int, stream: Any) -> float:
    """Measure the cycles in a second, the most of three: an idle device's clock is slow."""
    if ordinal not in _rates:
        rates = []
        for _ in range(3):
            start = torch_cuda.timing_event(stream)
            _spin(ordinal, stream, _CYCLES)
            end = torch_cuda.timing_event(stream)
            end.synchronize()
            rates.append(_CYCLES / max(float(start.elapsed_time(end)) / 1e3, 1e-9))
        _rates[ordinal] = max(rates)
    return _rates[ordinal]
