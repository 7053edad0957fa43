"""Kernels, copies and launches from a trace of torch's profiler; nothing but arithmetic.

The trace is the one that ``export_chrome_trace`` writes, by Kineto: an event has a category
(``kernel``, ``gpu_memcpy``, ``gpu_memset``; ``cuda_runtime`` and ``cuda_driver`` for calls of the
host), ``ts`` and ``dur`` in microseconds, and in ``args`` the ``device``, the ``stream``, ``bytes``
and the ``correlation`` that a call has in common with what it started.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpumagic.results import Copy, Kernel, KernelReport

#: The annotation around the profiled code.
RANGE = "gpumagic: the cell"

_Event = Mapping[str, Any]
_HOST = ("cuda_runtime", "cuda_driver")
_COPIES = ("gpu_memcpy", "gpu_memset")
_GPU = ("kernel", *_COPIES)
#: cudaLaunchKernel, cudaLaunchKernelExC, cuLaunchKernelEx, cudaLaunchCooperativeKernel,
#: hipExtModuleLaunchKernel…
_LAUNCH = re.compile(r"(cuda|cu|hip)\w*Launch\w*Kernel")
_GRAPH = re.compile(r"(cuda|cu|hip)GraphLaunch")


def report(trace: Sequence[_Event]) -> KernelReport:
    """Return the kernels and copies in a trace's events."""
    events = _complete(trace)
    host, gpu = host_events(trace), gpu_events(trace)
    kernels = [event for event in gpu if event["cat"] == "kernel"]
    if not host and not gpu:
        # The wait at the code's end is a call that a working profiler records.
        return KernelReport(visible=False)
    busy = {
        ordinal: _union(event for event in gpu if device(event) == ordinal)
        for ordinal in sorted({device(event) for event in gpu})
    }
    found = KernelReport(
        kernels=_kernels(kernels),
        copies=_copies(event for event in gpu if event["cat"] in _COPIES),
        window=_window(events, gpu),
        busy=busy,
    )
    return _checked(found, host, kernels)


def host_events(trace: Sequence[_Event]) -> list[_Event]:
    """Return the calls of the runtime and of the driver."""
    return [event for event in _complete(trace) if event.get("cat") in _HOST]


def gpu_events(trace: Sequence[_Event]) -> list[_Event]:
    """Return the kernels, copies and fills."""
    return [event for event in _complete(trace) if event.get("cat") in _GPU]


def device(event: _Event) -> int:
    """Return the CUDA ordinal on which an event of the GPU ran."""
    return int(event.get("args", {}).get("device", event.get("pid", 0)))


def correlation(event: _Event) -> int | None:
    """Return the number that a call has in common with what it started."""
    found = event.get("args", {}).get("correlation")
    return None if found is None else int(found)


def _complete(trace: Sequence[_Event]) -> list[_Event]:
    """Return the events with a start and a duration."""
    return [event for event in trace if event.get("ph") == "X"]


def _seconds(event: _Event) -> float:
    return float(event.get("dur", 0.0)) / 1e6


def _by_name(events: Iterable[_Event]) -> dict[str, list[_Event]]:
    groups: dict[str, list[_Event]] = defaultdict(list)
    for event in events:
        groups[str(event["name"])].append(event)
    return groups


def _kernels(events: Sequence[_Event]) -> tuple[Kernel, ...]:
    kernels = []
    for name, group in _by_name(events).items():
        times = [_seconds(event) for event in group]
        devices = tuple(sorted({device(event) for event in group}))
        kernels.append(Kernel(name, len(times), sum(times), min(times), max(times), devices))
    return tuple(sorted(kernels, key=lambda kernel: (-kernel.total, kernel.name)))


def _copies(events: Iterable[_Event]) -> tuple[Copy, ...]:
    copies = []
    for name, group in _by_name(events).items():
        sizes = [event.get("args", {}).get("bytes") for event in group]
        total = sum(_seconds(event) for event in group)
        known = None if None in sizes else sum(map(int, sizes))
        copies.append(Copy(name, len(group), total, known))
    return tuple(sorted(copies, key=lambda copy: (-copy.total, copy.name)))


def _union(events: Iterable[_Event]) -> float:
    """Return the seconds in which at least one of the events was running."""
    total, end = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: float(event["ts"])):
        start, stop = float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0.0))
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return total / 1e6


def _window(events: Sequence[_Event], gpu: Sequence[_Event]) -> float | None:
    """Return the seconds from the range's start until its end, or the last GPU event's."""
    cell = next(
        (e for e in events if e.get("cat") == "user_annotation" and e.get("name") == RANGE), None
    )
    if cell is None:
        return None
    ends = [float(event["ts"]) + float(event.get("dur", 0.0)) for event in (cell, *gpu)]
    return (max(ends) - float(cell["ts"])) / 1e6


# --- do the counts agree? -----------------------------------------------------------------------


def _checked(
    found: KernelReport, host: Sequence[_Event], kernels: Sequence[_Event]
) -> KernelReport:
    """Return ``found`` with its launches, and how many records have no counterpart."""
    if not host:
        return found
    launches = [event for event in host if _LAUNCH.match(str(event["name"]))]
    graphs = {correlation(event) for event in host if _GRAPH.match(str(event["name"]))}
    started = {correlation(event) for event in kernels}
    without = [event for event in launches if correlation(event) not in started]
    # The driver's call inside the runtime's is the same launch, recorded twice.
    double = {id(event) for event in without if _is_inside(event, launches)}
    launched = {correlation(event) for event in launches}
    return replace(
        found,
        launches=len(launches) - len(double),
        graph_launches=len(graphs),
        lost_kernels=len(without) - len(double),
        lost_launches=sum(correlation(event) not in launched | graphs for event in kernels),
    )


def _is_inside(event: _Event, launches: Sequence[_Event]) -> bool:
    if event.get("cat") != "cuda_driver":
        return False
    start, stop = float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0.0))
    return any(
        outer.get("cat") == "cuda_runtime"
        and outer.get("tid") == event.get("tid")
        and float(outer["ts"]) <= start
        and stop <= float(outer["ts"]) + float(outer.get("dur", 0.0))
        for outer in launches
    )
