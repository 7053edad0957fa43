"""What limits a cell, by the times of its lines: one sentence, with the evidence."""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import fsum

from gpumagic.render.units import share
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.line_timings import LineTiming

#: A part of the wall time that is worth a verdict.
_LARGE = 0.3
#: A part of the wall time that leaves no doubt.
_NEARLY_ALL = 0.9
#: A line with this part of what is said is named for it.
_MOST = 0.5


def verdict(
    lines: Sequence[LineTiming],
    loops: Container[int],
    timing: CudaTiming,
    cost: float,
) -> str | None:
    """Return what limits the cell; None where the figures do not show it.

    Args:
        lines: The cell's lines.
        loops: The lines that are heads of ``for`` loops.
        timing: The cell's times.
        cost: The part of the wall time that measuring the lines took.
    """
    wall = timing.wall.median
    if timing.gpu is None or wall <= 0 or timing.partial or not lines:
        return None
    certain = {line.line: line.gpu for line in lines if line.gpu and not line.at_most}
    busy = fsum(certain.values())
    if busy >= _NEARLY_ALL * wall:
        evidence = f"GPU-bound: the GPU is busy for {share(busy / wall)} of the wall time"
        longest = max(certain, key=certain.__getitem__)
        is_most = certain[longest] >= _MOST * busy
        return f"{evidence}, mostly with work of line {longest}" if is_most else evidence
    waiting = max(lines, key=lambda line: line.sync_time)
    slowest = max(lines, key=_with_idle_gpu)
    idle = _with_idle_gpu(slowest)
    if waiting.sync_time >= max(_LARGE * wall, idle):
        times = "once" if waiting.syncs == 1 else f"{waiting.syncs:,} times"
        part = share(waiting.sync_time / wall)
        return f"{part} of the wall time is waiting for the GPU in line {waiting.line} ({times})"
    if idle - cost * wall < _LARGE * wall:
        return None
    if slowest.line in loops:  # it takes the loop's next value
        part = share(idle / wall)
        return f"the GPU may wait for input: line {slowest.line}, {part} of the wall time"
    takes = f"line {slowest.line} takes {share(slowest.host / wall)} of the wall time"
    return f"{takes}: it may wait for the GPU, or the GPU may be idle then"


def _with_idle_gpu(line: LineTiming) -> float:
    """Return the host's seconds in a line in which the GPU may have been idle.

    Of a line that waited for the GPU none: the rest may be a wait, too.
    """
    return min(line.host, line.gpu or 0.0) if line.at_most and not line.syncs else 0.0
