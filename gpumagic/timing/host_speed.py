"""How fast the host is: a fixed piece of work, timed just before and just after the repeats.

How long threads wait for a CPU is counted by the system (`cpu_wait`). Not counted is that the CPU
itself was slower: the core's other hyperthread was in use, others had the caches, the clock was
low, or the hypervisor ran something else.
"""

from __future__ import annotations

import statistics
from time import perf_counter

from gpumagic.results import Sample
from gpumagic.results.conditions import Conditions

#: How often the work is done each time, and how often before that, to fill the caches.
_ROUNDS, _WARM_UP = 20, 3
#: Calls of a Python function, and reads from this many objects, more than a first-level cache
#: holds: together a tenth of a millisecond. A change makes stored figures those of other work.
_CALLS, _READS, _OBJECTS = 800, 2000, 16384
#: Coprime to the number of objects, so that the reads are spread over all.
_STEP = 7919


class HostSpeed:
    """Times the work when `measure` is called; does nothing unless ``wanted``."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._times: list[float] = []

    @property
    def sample(self) -> Sample | None:
        """The seconds of each time; None where it was not measured, or the clock stood still."""
        return Sample(tuple(self._times)) if self._times and min(self._times) > 0 else None

    def measure(self) -> None:
        """Do the work some times."""
        if not self._wanted:
            return
        values = [float(number) for number in range(_OBJECTS)]
        order = [number * _STEP % _OBJECTS for number in range(_READS)]
        for number in range(_WARM_UP + _ROUNDS):
            started = perf_counter()
            for _ in range(_CALLS):
                _call(started)
            sum(map(values.__getitem__, order))
            seconds = perf_counter() - started
            if number >= _WARM_UP:
                self._times.append(seconds)


def _call(value: float) -> float:
    return value + 1


def slowdown(now: Conditions | None, before: Conditions | None) -> float:
    """Return how many times as slow the host may have become; 1 where that is not known.

    With the spread: the slow times now (the ninth decile) by the fast ones before (the first),
    since nothing is known of the time in between.
    """
    ours, theirs = (each.host_speed if each else None for each in (now, before))
    if ours is None or theirs is None or min(ours.best, theirs.best) <= 0:
        return 1.0
    return max(_deciles(ours)[-1] / _deciles(theirs)[0], 1.0)


def _deciles(sample: Sample) -> list[float]:
    # Twice the same, since Python before 3.13 refuses a single value.
    return statistics.quantiles((*sample.all, *sample.all), n=10, method="inclusive")
