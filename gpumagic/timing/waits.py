"""Waits for the GPU: for an event, which Ctrl-C interrupts; for a device, with the time it took."""

from __future__ import annotations

from time import perf_counter, sleep, thread_time
from typing import Any

from gpumagic.cuda.pytorch import waiting

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # Windows, macOS
    getrusage = None  # type: ignore[assignment]

#: Seconds for which a wait polls. Then it sleeps between two queries, for a thousandth of the time
#: that has passed.
_SPIN = 5e-3


def waited(ordinal: int) -> float:
    """Wait for a device; return the seconds in which this thread waited for nothing else."""
    slept, cpu, begun = _sleeps(), thread_time(), perf_counter()
    waiting.synchronize(ordinal)
    took, cpu = perf_counter() - begun, thread_time() - cpu
    # CUDA's wait spins, or sleeps: a thread whose processor was taken does neither.
    return took if _sleeps() > slept or getrusage is None else min(took, cpu)


def _sleeps() -> int:
    return 0 if getrusage is None else getrusage(RUSAGE_THREAD).ru_nvcsw


def wait_for(event: Any) -> None:
    """Wait for an event; Ctrl-C interrupts, unlike CUDA's own wait."""
    begun = perf_counter()
    while not event.query():
        pause(begun)


def pause(begun: float) -> None:
    """Give up the processor for a while, in a wait that began at ``begun``."""
    passed = perf_counter() - begun
    if passed > _SPIN:
        sleep(passed / 1000)
