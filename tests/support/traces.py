"""Events of torch's profiler as they stand in a trace of Kineto's; microseconds."""

from __future__ import annotations

import json
from typing import Any

from gpumagic.timing.kernel_trace import RANGE


class Trace:
    """A trace of the range around the profiled code, and what is added."""

    def __init__(self, begin: float = 0.0, duration: float = 100.0) -> None:
        self.events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "ts": begin, "pid": 1, "args": {"name": "python"}},
            event("user_annotation", RANGE, begin, duration),
        ]

    def add(self, category: str, name: str, at: float, long: float, **arguments: Any) -> Trace:
        self.events.append(event(category, name, at, long, **arguments))
        return self

    def launched(
        self,
        name: str,
        at: float,
        long: float,
        correlation: int,
        call: str = "cudaLaunchKernel",
        *,
        called: float | None = None,
        device: int = 0,
        stream: int = 7,
    ) -> Trace:
        """Add a kernel, and the call that launches it: ``called`` before it begins."""
        category = "cuda_driver" if call.startswith("cu") and call[2] == "L" else "cuda_runtime"
        begin = at - 5 if called is None else called
        self.add(category, call, begin, 2, correlation=correlation)
        where = {"device": device, "stream": stream}
        return self.add("kernel", name, at, long, correlation=correlation, **where)

    def copied(
        self, name: str, at: float, long: float, correlation: int, *, called: float, device: int = 0
    ) -> Trace:
        """Add a copy and its call."""
        self.add("cuda_runtime", "cudaMemcpyAsync", called, 2, correlation=correlation)
        where = {"device": device, "stream": 7, "bytes": 64}
        return self.add("gpu_memcpy", name, at, long, correlation=correlation, **where)

    def written(self) -> list[dict[str, Any]]:
        """Return the events as they are read from a file."""
        read: list[dict[str, Any]] = json.loads(json.dumps(self.events))
        return read


def event(category: str, name: str, at: float, long: float, **arguments: Any) -> dict[str, Any]:
    whole = {"ph": "X", "cat": category, "name": name, "ts": at, "dur": long, "args": arguments}
    return {**whole, "pid": 1, "tid": 1}
