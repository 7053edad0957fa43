"""What limits a cell, in one line with its evidence: nothing but arithmetic on the lines' times."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpumagic.results import CudaTiming
from gpumagic.results.line_timing import LineTiming

#: A part of the wall time that is worth a verdict, and one that leaves no doubt.
_LARGE, _NEARLY_ALL = 0.3, 0.9
#: A line with this part of what is said is named for it.
_MOST = 0.5


def verdict(lines: Sequence[LineTiming], timing: CudaTiming) -> str | None:
    """Return what limits the cell; None where the figures do not show it."""
    wall = timing.wall.median
    if timing.gpu is None or wall <= 0 or timing.partial:
        return None
    certain = math.fsum(line.gpu or 0.0 for line in lines if not line.at_most)
    if certain >= _NEARLY_ALL * wall:
        return _gpu_bound(lines, certain, wall)
    found = max(_synchronizations(lines, wall), _input(lines, wall), key=lambda found: found[0])
    return found[1] if found[0] >= _LARGE else None


def _gpu_bound(lines: Sequence[LineTiming], certain: float, wall: float) -> str:
    evidence = f"GPU-bound: it is busy for {_percent(certain / wall)} of the wall time"
    longest = max(lines, key=lambda line: 0.0 if line.at_most else line.gpu or 0.0)
    part = (longest.gpu or 0.0) / certain
    return f"{evidence}, most of it with line {longest.line}" if part >= _MOST else evidence


def _synchronizations(lines: Sequence[LineTiming], wall: float) -> tuple[float, str]:
    waits = [(each.time or 0.0, each, line) for line in lines for each in line.synchronizations]
    if not waits:
        return 0.0, ""
    time, each, line = max(waits, key=lambda wait: wait[0])
    times = "once" if each.count == 1 else f"{each.count:,} times"
    part = time / wall
    return part, (
        f"{_percent(part)} of the wall time is waiting for {each.call} in line {line.line} "
        f"({times})"
    )


def _input(lines: Sequence[LineTiming], wall: float) -> tuple[float, str]:
    waiting = max(lines, key=lambda line: line.input_wait or 0.0, default=None)
    if waiting is None or not waiting.input_wait:
        return 0.0, ""
    part = waiting.input_wait / wall
    return part, (
        f"the GPU waits for input: line {waiting.line}, {_percent(part)} of the wall time"
    )


def _percent(part: float) -> str:
    return f"{100 * min(part, 1.0):.0f} %"
