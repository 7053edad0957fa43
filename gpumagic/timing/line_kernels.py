"""The kernels and copies of a profiler's trace by the line that launched them; only arithmetic.

What has run on the GPU has the number (``correlation``) of the call that launched it, and the line
is the one that was running in the cell's thread when that call began. So what other threads launch
counts to the line that was running, and a backward pass to the line that waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpumagic.cells.line_tracer import Line
from gpumagic.timing.kernel_trace import correlation, device, gpu_events, host_events

#: The place of the cell among the sources.
CELL = 0


@dataclass
class LineWork:
    """The GPU work that a line has launched. Seconds."""

    #: How long the work ran while none that had begun earlier ran on the same device: no moment of
    #: a device counts twice, and the lines add up to the time in which it was busy.
    busy: float = 0.0
    #: Kernels, without copies, and the sum of their times.
    kernels: int = 0
    kernel_time: float = 0.0


def by_line(
    trace: Sequence[Mapping[str, Any]], lines_at: Callable[[float], Sequence[Line]]
) -> dict[Line | None, LineWork]:
    """Return the work of each line; of None, what no line of the cell has launched.

    ``lines_at`` returns the lines that ran at a time of the trace, one of each source at most: the
    work of a function's line is also that of the line of the cell that calls it.
    """
    launched: dict[int, float] = {}
    for event in sorted(host_events(trace), key=lambda event: float(event["ts"])):
        number = correlation(event)
        if number is not None:  # the runtime's call before the driver's within it
            launched.setdefault(number, float(event["ts"]))
    work: defaultdict[Line | None, LineWork] = defaultdict(LineWork)
    busy_until: defaultdict[int, float] = defaultdict(lambda: float("-inf"))
    for event in sorted(gpu_events(trace), key=lambda event: float(event["ts"])):
        start, duration = float(event["ts"]), float(event.get("dur", 0.0))
        ordinal, stop = device(event), start + duration
        fresh = max(stop - max(start, busy_until[ordinal]), 0.0)
        busy_until[ordinal] = max(busy_until[ordinal], stop)
        number = correlation(event)
        at = None if number is None else launched.get(number)
        lines: set[Line | None] = {*(() if at is None else lines_at(at))}
        if all(line is None or line.source != CELL for line in lines):
            lines.add(None)
        for line in lines:
            one = work[line]
            one.busy += fresh / 1e6
            if event["cat"] == "kernel":
                one.kernels += 1
                one.kernel_time += duration / 1e6
    return dict(work)
