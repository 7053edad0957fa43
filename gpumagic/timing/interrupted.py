"""What is known of a stretch whose GPU work nobody waits for any longer."""

from __future__ import annotations

from time import perf_counter

from gpumagic.timing.measure import Lap, Stopwatch

WHILE_WAITING = "interrupted while waiting for the GPU"


def without_gpu(stopwatch: Stopwatch) -> Lap:
    """The host's side, after a `Stopwatch.stop` that did not end; wall time is until now."""
    now = perf_counter()
    user, system = stopwatch._cpu_passed
    return Lap(
        wall=now - stopwatch._started,
        host=stopwatch._stopped - stopwatch._started,
        user=max(user - stopwatch._own[0], 0.0),
        system=max(system - stopwatch._own[1], 0.0),
        readings={},
        notes=(WHILE_WAITING,),
    )
