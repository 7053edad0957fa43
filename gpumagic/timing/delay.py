"""A kernel that keeps a device busy while the host queues work behind it.

It is torch's own ``torch.cuda._sleep``, which ends by itself: code that synchronises cannot hang.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from gpumagic.cuda import torch_cuda

#: Cycles of the kernel that is timed for the rate.
_CYCLES = 2_000_000
#: Cycles of ``torch.cuda._sleep`` in a second, by ordinal.
_rates: dict[int, float] = {}


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
