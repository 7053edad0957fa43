"""What limits a cell, in one line with its evidence: nothing but arithmetic on the lines' times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gpumagic.results import CudaTiming
from gpumagic.results.line_timing import LineTiming
from gpumagic.timing.line_totals import LineTime

#: A part of the wall time that is worth a verdict, and one that leaves no doubt.
_LARGE, _NEARLY_ALL = 0.3, 0.9
#: A line with this part of what is said is named for it.
_MOST = 0.5
#: Waits that are known by times alone may be a coincidence, but not as many as these.
_REPEATED = 3
#: A launch takes a few microseconds, and torch's own work around it some more: where the host takes
#: longer for each kernel, something else does.
_LAUNCH, _MANY = 50e-6, 100
#: Seconds that `synchronize` takes at most on an idle GPU.
_WAIT = 50e-6
#: Seconds between two marks without work, at most, and the part by which clocks differ.
_MARKS, _CLOCKS = 20e-6, 0.01


def verdict(
    lines: Sequence[LineTiming], timing: CudaTiming, cost: float | None = 0.0
) -> str | None:
    """Return what limits the cell; None where the figures do not show it.

    ``cost`` is `LineTimings.cost`; where it is None, the host's own times are no evidence.
    """
    wall = timing.wall.median
    if timing.gpu is None or wall <= 0 or timing.partial:
        return None
    certain = math.fsum(line.gpu or 0.0 for line in lines if not line.at_most)
    if certain >= _NEARLY_ALL * wall:
        return _gpu_bound(lines, certain, wall)
    causes = [_synchronizations(lines, wall)]
    if cost is not None:
        causes += [_input(lines, wall), _launches(lines, wall)]
    part, evidence = max(causes, key=lambda cause: cause[0])
    return evidence if part >= _LARGE else None


def _gpu_bound(lines: Sequence[LineTiming], certain: float, wall: float) -> str:
    evidence = f"GPU-bound: the GPU is busy for {_percent(certain / wall)} of the wall time"
    longest = max(lines, key=lambda line: 0.0 if line.at_most else line.gpu or 0.0)
    is_most = (longest.gpu or 0.0) / certain >= _MOST and not longest.rough
    return f"{evidence}, most of it with line {longest.line}" if is_most else evidence


def _synchronizations(lines: Sequence[LineTiming], wall: float) -> tuple[float, str]:
    waits = [
        (each.time or 0.0, each, line)
        for line in lines
        for each in line.synchronizations
        if not each.at_most or each.count >= _REPEATED
    ]
    if not waits:
        return 0.0, ""
    time, each, line = max(waits, key=lambda wait: wait[0])
    times = "once" if each.count == 1 else f"{each.count:,} times"
    part = time / wall
    return part, (
        f"{'up to ' * each.at_most}{_percent(part)} of the wall time is waiting for {each.call} "
        f"in line {line.line} ({times})"
    )


def _input(lines: Sequence[LineTiming], wall: float) -> tuple[float, str]:
    """Return the part of the wall time in which the GPU waits for the next value of a ``for``."""
    waiting = max(lines, key=_gpu_wait, default=None)
    if waiting is None or not _gpu_wait(waiting):
        return 0.0, ""
    part = _gpu_wait(waiting) / wall
    return part, (
        f"the GPU waits for input: line {waiting.line}, {_percent(part)} of the wall time"
    )


def _gpu_wait(line: LineTiming) -> float:
    """Return the seconds of a wait for input in which the GPU has no work of earlier lines left."""
    return min(line.input_wait or 0.0, line.gpu or 0.0) if line.at_most else 0.0


def _launches(lines: Sequence[LineTiming], wall: float) -> tuple[float, str]:
    """Return the part of the wall time in which a line launches and the GPU has nothing to do."""
    largest = 0.0, ""
    for line in lines:
        if not line.kernels or line.kernels < _MANY or not line.at_most:
            continue
        busy, kernel_time = line.busy or 0.0, line.kernel_time or 0.0
        launching = line.host - line.sync_time - (line.input_wait or 0.0)
        if busy < launching <= _LAUNCH * line.kernels:
            each = 1e6 * kernel_time / line.kernels
            time = f"{each:.0f} µs" if each >= 1 else "less than 1 µs"
            evidence = f"launch-bound: {line.kernels:,} kernels of {time} in line {line.line}"
            largest = max(largest, ((launching - busy) / wall, evidence))
    return largest


def _percent(part: float) -> str:
    return f"{100 * min(part, 1.0):.0f} %"


def shows_work(times: Iterable[LineTime]) -> bool:
    """Return whether a line waits for the GPU, or the GPU was behind the host in it."""
    return any(
        any(
            seconds > _WAIT or not str(call).endswith("synchronize()")  # copies are work
            for call, seconds in (*line.synchronizations, *line.unnamed)
        )
        or line.certain > _MARKS * line.hits + _CLOCKS * (line.gpu or 0.0)
        for line in times
    )
