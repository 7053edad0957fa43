"""What limits a cell, in one line with its evidence: nothing but arithmetic on the lines' times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import fsum

from gpumagic.results import CudaTiming
from gpumagic.results.line_timing import LineTiming

#: A part of the wall time that is worth a verdict, and one that leaves no doubt.
_LARGE, _NEARLY_ALL = 0.3, 0.9
#: A line with this part of what is said is named for it.
_MOST = 0.5


def verdict(
    lines: Sequence[LineTiming], loops: Collection[int], timing: CudaTiming, cost: float
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
    certain = [line for line in lines if line.gpu and not line.at_most]
    busy = fsum(line.gpu or 0.0 for line in certain)
    if busy >= _NEARLY_ALL * wall:
        evidence = f"GPU-bound: the GPU is busy for {_percent(busy / wall)} of the wall time"
        longest = max(certain, key=lambda line: line.gpu or 0.0)
        is_most = (longest.gpu or 0.0) >= _MOST * busy
        return f"{evidence}, most of it with line {longest.line}" if is_most else evidence
    waiting = max(lines, key=lambda line: line.sync_time)
    loop = max(lines, key=lambda line: _starved(line, loops))
    starved = _starved(loop, loops)
    if waiting.sync_time >= max(_LARGE * wall, starved):
        times = "once" if waiting.syncs == 1 else f"{waiting.syncs:,} times"
        part = _percent(waiting.sync_time / wall)
        return f"{part} of the wall time is waiting for the GPU in line {waiting.line} ({times})"
    if starved - cost * wall >= _LARGE * wall:
        part = _percent(starved / wall)
        return f"the GPU waits for input: line {loop.line}, {part} of the wall time"
    return None


def _starved(line: LineTiming, loops: Collection[int]) -> float:
    """Return the seconds in which a loop waits for its next value, and the GPU is idle."""
    waits = line.line in loops and line.at_most
    return min(line.host - line.sync_time, line.gpu or 0.0) if waits else 0.0


def _percent(part: float) -> str:
    return f"{100 * min(part, 1.0):.0f} %"
