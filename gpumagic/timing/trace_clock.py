"""The clock of a profiler's trace beside the host's: by short ranges recorded at known times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from gpumagic.cuda import torch_cuda

#: The name of the ranges.
MARK = "gpumagic: clock"
#: Ranges at each end; the one that took the least time counts.
_RANGES = 5
#: The clocks may differ by so much of the time that has passed, and by so many seconds besides.
_DRIFT, _OFF = 1e-3, 1e-3


class TraceClock:
    """Records ranges at the start and at the end of its block, within the profiler's."""

    def __init__(self) -> None:
        #: The host's times before and after each range began, at the start and at the end.
        self._ends: list[list[tuple[float, float]]] = []

    def __enter__(self) -> TraceClock:
        self._ends.append([_record() for _ in range(_RANGES)])
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.append([_record() for _ in range(_RANGES)])

    def host_time(self, trace: Sequence[Mapping[str, Any]]) -> Callable[[float], float] | None:
        """Return a function from a time of the trace (µs) to that of `perf_counter`.

        None where the ranges are not in the trace, or the clocks do not go alike.
        """
        times = sorted(
            float(event["ts"])
            for event in trace
            if event.get("name") == MARK and event.get("cat") == "user_annotation"
        )
        if len(self._ends) != 2 or len(times) != 2 * _RANGES:
            return None
        first, last = (
            min(zip(host, traced, strict=True), key=lambda mark: mark[0][1] - mark[0][0])
            for host, traced in zip(self._ends, (times[:_RANGES], times[_RANGES:]), strict=True)
        )
        begin, end = sum(first[0]) / 2, sum(last[0]) / 2
        passed = (last[1] - first[1]) / 1e6
        if passed <= 0 or abs(end - begin - passed) > _DRIFT * passed + _OFF:
            return None
        return lambda time: begin + (time - first[1]) / 1e6 * (end - begin) / passed


def _record() -> tuple[float, float]:
    before = perf_counter()
    with torch_cuda.annotation(MARK):
        return before, perf_counter()
