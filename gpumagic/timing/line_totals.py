"""The sums over the runs of a line, and the moments between runs."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import sqrt
from statistics import median, stdev
from typing import NamedTuple

from gpumagic.cells.line_tracer import Line
from gpumagic.timing.line_passes import PassLine
from gpumagic.timing.short_runs import LONG

#: The part of a GPU time that the GPU may have been idle for, from which it is an upper bound.
_IDLE = 0.02
#: The part of the cell's time that a time may be wrong by, and of the line's time.
_WRONG, _WRONG_OF_LINE = 0.01, 0.05
#: The same parts for an estimate that is still worth something.
_ROUGH, _ROUGH_OF_LINE = 0.05, 0.5
#: The quantile at which the lowest upper limit is taken.
_BOUND = 0.1
#: The weight of a marked run that follows another one, beside those that follow runs without marks.
_ALONE = 1e-6


class Boundary:
    """The moment between two lines, and what ran between the last boundary and this one."""

    __slots__ = (
        "devices", "entered", "left", "own", "recorded", "segments", "synchronized", "taken",
        "tracing",
    )  # fmt: skip

    def __init__(
        self, entered: float, synchronized: int, segments: list[Segment], tracing: float = 0.0
    ) -> None:
        #: The host's time when the last line ended, and when the next one began.
        self.entered = self.left = entered
        #: Seconds that this boundary took itself, and with it all before.
        self.taken = self.own = 0.0
        #: Seconds that tracing takes here, beside what the boundary knows of itself.
        self.tracing = tracing
        #: How many synchronisations there were before.
        self.synchronized = synchronized
        #: More than one, or of more than one run, where short runs were counted without boundaries.
        self.segments = segments
        #: The host's time before and after the mark was recorded, if there is one.
        self.recorded = (entered, entered)
        #: Seconds by device in use from the start until the GPU work before the mark was done.
        self.devices: tuple[float, ...] = ()

    def leave(self, left: float) -> None:
        """Begin the next line, perhaps later than was thought before."""
        taken = left - self.entered
        self.own += taken - self.taken
        self.left, self.taken = left, taken


class Segment(NamedTuple):
    """Runs of a line, the innermost one, without another boundary."""

    line: Total
    runs: int
    #: The lines that have this time, one of each source.
    owners: list[Total]


class Total:
    """The sums over the runs of a line."""

    def __init__(self, all_marked: int) -> None:
        self._all_marked = all_marked
        self.hits = self.marked_at = self.short_runs = 0
        self.short_host = 0.0
        self.begins_pass = False
        self.last = 0.0
        self.next_marked = 0
        self.sampled_by: PassLine | None = None
        self.host = self.gpu = self.idle = 0.0
        #: The host time of runs that a line above led to: of a ``for`` line, those that begin it.
        self.from_above = 0.0
        #: Segments whose GPU time is known, and those whose is not.
        self.known = self.unknown = 0
        self.devices: list[float] = []
        self.synchronizations: list[tuple[str, float]] = []
        #: Of segments without marks, by whether the GPU may have been idle, those of each line.
        self.unmarked: dict[bool, Counter[Total]] = defaultdict(Counter)
        #: By how much the time may be too low, and by how much it may be wrong.
        self.too_low = self.uncertain = 0.0
        #: Sums over segments with marks, counted as often as there are some without before it:
        #: the least and the most work, and the number.
        self.least = self.most = self.weight = 0.0
        self.represented = 0
        #: The difference of each; and the least work and the difference of those that were drawn
        #: from many.
        self._between_limits = array("d")
        self._drawn, self._drawn_between = array("d"), array("d")

    @property
    def interval(self) -> int:
        """Of how many runs one is marked now."""
        if self.hits <= self._all_marked or self.host > LONG * self.hits:
            return 1
        return 1 << (self.hits // self._all_marked).bit_length()

    def add_run(
        self,
        begin: Boundary,
        end: Boundary,
        synchronizations: Sequence[tuple[str, float]],
        *,
        is_from_above: bool,
    ) -> None:
        """Add a run to the host time, with those of all the cell's synchronisations in it."""
        host = end.entered - begin.left - (end.own - begin.own) - end.tracing
        self.host += host
        if is_from_above:
            self.from_above += host
        if begin.synchronized != end.synchronized:
            self.synchronizations += synchronizations[begin.synchronized : end.synchronized]

    def add_marked(self, least: float, most: float) -> None:
        """Add a segment with marks, by which those without marks are estimated."""
        weight = self.represented or _ALONE
        if self.represented:
            self._drawn.append(least)
            self._drawn_between.append(most - least)
        self.represented = 0
        self.least += weight * least
        self.most += weight * most
        self.weight += weight
        self._between_limits.append(most - least)

    def estimate(self) -> Estimate:
        """Return what a segment without marks takes, by those with marks."""
        if self.weight:
            least = self.least / self.weight
            between = sorted(self._between_limits)
            bound = between[int(_BOUND * len(between))]
            most = self.most / self.weight
            error = self._error() if len(self._drawn) > 1 else least
            return Estimate(least, least + bound, least + median(between), most, error)
        # It was never measured: by the host's time instead.
        most = max(self.host / max(self.hits, 1), _ALONE)
        return Estimate(0.0, most, most, most, most)

    def _error(self) -> float:
        """Return the standard error of the mean; what is far above the median is idle time."""
        usual = 2 * median(self._drawn_between)
        limited = zip(self._drawn, self._drawn_between, strict=True)
        drawn = [least + min(between, usual) for least, between in limited]
        return stdev(drawn) / sqrt(len(drawn))

    def add(self, passed: float, idle: float, devices: Sequence[float]) -> None:
        """Add GPU time, with a part in which the GPU may have been idle."""
        self.known += 1
        self.gpu += passed
        self.idle += idle
        self.devices += [0.0] * (len(devices) - len(self.devices))
        for i, seconds in enumerate(devices):
            self.devices[i] += seconds

    def result(
        self,
        ordinals: Sequence[int],
        whole: float,
        unnamed: Sequence[tuple[Line, float]],
    ) -> LineTime:
        """Return the times; ``ordinals`` are of the devices in use, ``whole`` is the cell's.

        ``unnamed`` are the lines of waits that are known by times alone, and the seconds.
        """
        is_sampled = self.interval > 1 and any(self.unmarked.values())
        is_too_low = self.too_low > max(_WRONG * whole, _WRONG_OF_LINE * self.gpu)
        is_wrong = self.uncertain > _ROUGH * whole + _ROUGH_OF_LINE * self.gpu
        is_known = self.known > 0 and not self.unknown and not is_too_low and not is_wrong
        return LineTime(
            hits=self.hits,
            host=max(self.host, 0.0),
            from_above=max(self.from_above, 0.0),
            gpu=self.gpu if is_known else None,
            at_most=is_known and self.idle > _IDLE * self.gpu,
            certain=max(self.gpu - self.idle, 0.0),
            per_device=dict(zip(ordinals, self.devices, strict=False)) if is_known else {},
            synchronizations=tuple(self.synchronizations),
            interval=(self.sampled_by or self).interval if is_sampled else 1,
            is_too_low=is_too_low,
            is_wrong=is_wrong,
            is_rough=is_known and self.uncertain > _WRONG * whole + _WRONG_OF_LINE * self.gpu,
            unnamed=tuple(unnamed),
        )


class Estimate(NamedTuple):
    """The limits of the work of a segment, in seconds.

    Where the host was held up, the upper one is far too high. If the runs are alike, none takes
    longer than the lowest one.
    """

    least: float
    bound: float
    #: The upper one, by the median and by the mean of the distances between the two.
    typical: float
    most: float
    #: The standard error of the mean.
    error: float


class LineTime(NamedTuple):
    """The times of all runs of a line, in seconds."""

    hits: int
    host: float
    #: The part of ``host`` in runs that a line above led to: of a ``for`` line, its beginnings.
    from_above: float
    #: None where not known.
    gpu: float | None
    at_most: bool
    #: The part of ``gpu`` in which the GPU was at work for certain.
    certain: float
    per_device: dict[int, float]
    #: The calls that waited, and the seconds.
    synchronizations: tuple[tuple[str, float], ...]
    #: Of how many runs one was measured in the end.
    interval: int
    #: Whether ``gpu`` is unknown because runs without marks differ from those with them.
    is_too_low: bool = False
    #: Whether it is unknown, or an estimate, because the runs differ too much for a sample of them.
    is_wrong: bool = False
    is_rough: bool = False
    #: The lines of waits that are known by times alone, and the seconds.
    unnamed: tuple[tuple[Line, float], ...] = ()
