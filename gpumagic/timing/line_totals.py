"""The sums over the runs of a line, and the moments between runs by which they are divided."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from gpumagic.cells.line_tracer import Line
from gpumagic.timing.short_runs import LONG

#: Runs without a mark are estimated by about so many latest ones with marks: times may change.
_LATEST = 4
#: The part of a GPU time that the GPU may have been idle for, from which it is an upper bound.
_IDLE = 0.02


class Boundary:
    """The moment between two lines; its GPU times are known once a mark at it or later is read."""

    __slots__ = (
        "devices", "ended", "entered", "gpu", "idle", "left", "own", "recorded", "running",
        "shared", "synchronized", "taken", "unnamed",
    )  # fmt: skip

    def __init__(self, entered: float, synchronized: int, running: Total | None) -> None:
        #: The host's time when the last line ended, and when the next one began.
        self.entered = self.left = entered
        #: Seconds that this boundary took itself, and with it all before.
        self.taken = self.own = 0.0
        #: How many synchronisations there were before.
        self.synchronized = synchronized
        #: The innermost line that ran until here.
        self.running = running
        #: When its mark was recorded.
        self.recorded = entered
        #: How many waits of `WaitsByTime` there were before; None where not known.
        self.unnamed: int | None = None
        #: The lines that end here, with their beginnings.
        self.ended: list[tuple[Total, Boundary]] = []
        #: The short lines that ran since the boundary before, with their runs and host time.
        self.shared: list[tuple[Total, int, float]] = []
        #: Seconds from the start until the GPU work before was done; None where not known.
        self.gpu: float | None = None
        #: The part of them in which the GPU may have been idle.
        self.idle = 0.0
        #: Seconds by device in use.
        self.devices: tuple[float, ...] = ()


class Total:
    """The sums over the runs of a line."""

    def __init__(self, all_marked: int) -> None:
        self._all_marked = all_marked
        self.hits = self.marked_at = self.short_runs = 0
        self.short_host = 0.0
        self.host = self.gpu = self.idle = 0.0
        #: The host time of runs that a line above led to: of a ``for`` line, those that begin it.
        self.from_above = 0.0
        #: Runs whose GPU time is known, and those whose is not.
        self.known = self.unknown = 0
        self.devices: list[float] = []
        self.synchronizations: list[tuple[str, float]] = []
        #: Runs that lay alone between two marks, and the mean of the latest ones' GPU time.
        self.marked = 0
        self.latest = 0.0

    @property
    def interval(self) -> int:
        """Every how many-th run is marked now."""
        if self.hits <= self._all_marked or self.host > LONG * self.hits:
            return 1
        return 1 << (self.hits // self._all_marked).bit_length()

    def add_marked(self, seconds: float) -> None:
        """Add a run by which those without marks are estimated."""
        self.marked += 1
        self.latest += (seconds - self.latest) / min(self.marked, _LATEST)

    def add(self, begin: Boundary, end: Boundary, part: float = 1.0) -> None:
        """Add a part of the GPU time between two boundaries: all of it for a run."""
        if begin.gpu is None or end.gpu is None or len(begin.devices) != len(end.devices):
            self.unknown += 1
            return
        self.known += 1
        self.gpu += part * (end.gpu - begin.gpu)
        self.idle += part * (end.idle - begin.idle)
        self.devices += [0.0] * (len(end.devices) - len(self.devices))
        for i, (start, stop) in enumerate(zip(begin.devices, end.devices, strict=True)):
            self.devices[i] += part * (stop - start)

    def result(self, ordinals: Sequence[int]) -> LineTime:
        """Return the times; ``ordinals`` are of the devices in use."""
        is_known = self.known > 0 and not self.unknown
        return LineTime(
            hits=self.hits,
            host=max(self.host, 0.0),
            from_above=max(self.from_above, 0.0),
            gpu=self.gpu if is_known else None,
            at_most=is_known and self.idle > _IDLE * self.gpu,
            per_device=dict(zip(ordinals, self.devices, strict=False)) if is_known else {},
            synchronizations=tuple(self.synchronizations),
            interval=self.interval,
        )


class LineTime(NamedTuple):
    """The times of all runs of a line, in seconds."""

    hits: int
    host: float
    #: The part of ``host`` in runs that a line above led to: of a ``for`` line, its beginnings.
    from_above: float
    #: None where not known.
    gpu: float | None
    at_most: bool
    per_device: dict[int, float]
    #: The calls that waited, and the seconds.
    synchronizations: tuple[tuple[str, float], ...]
    #: Every how many-th run was measured in the end.
    interval: int
    #: The lines of waits that are known by times alone, and the seconds.
    unnamed: tuple[tuple[Line, float], ...] = ()


def weights(boundary: Boundary) -> list[float]:
    """Return how the time before a boundary is divided among short lines: by GPU or host time."""
    by_gpu = [count * total.latest for total, count, _ in boundary.shared]
    return by_gpu if any(by_gpu) else [host for _, _, host in boundary.shared]


def parts(before: Boundary, boundaries: Sequence[Boundary]) -> list[float]:
    """Return for all boundaries but the last which part of the time is before it."""
    shares: list[float] = []
    for boundary in boundaries:
        running = boundary.running
        if boundary.shared and all(total.marked for total, _, _ in boundary.shared):
            shares.append(fsum(count * total.latest for total, count, _ in boundary.shared))
            continue
        if running is None or not running.marked:
            # Between lines, or a line that was never measured: by the host's time instead.
            shares.clear()
            break
        shares.append(running.latest)
    total = sum(shares)
    if not total:
        begins = [before, *boundaries[:-1]]
        shares = [end.entered - begin.left for begin, end in zip(begins, boundaries, strict=True)]
        total = sum(shares) or 1.0
    return [part / total for part in itertools.accumulate(shares[:-1])]
