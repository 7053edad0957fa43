"""How the time that passed between marks is divided among the lines that ran.

Of a run between two marks, the GPU's work took the time between them less what it was idle for. If
it had reached the first mark when the second one was recorded, that is known within limits only:
what runs after the host has left the line is work, and no work begins before the host has begun the
line. By these limits, the time in which lines ran without marks is divided at the end: to each line
first what is work for certain, and what remains in proportion to what may have been idle time. What
the GPU was idle for because lines were measured belongs to none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import fsum, hypot, sqrt
from typing import NamedTuple

from gpumagic.timing.line_totals import Boundary, Segment, Total
from gpumagic.timing.waits_by_time import LEAST, WaitsByTime

#: Seconds after which a GPU that is idle begins what is launched, at most.
_LATENCY = 5e-6
#: Seconds after the end of a line in which a mark is recorded, unless the host is held up.
_LATE = 30e-6
#: Idle time up to so many times that of the marked runs is divided as theirs.
_MORE_IDLE = 4.0
#: By how many standard errors, and by which part of the time, the lines' estimates may miss it.
_ERRORS, _SMALL = 4.0, 0.01


class PassedTime:
    """Adds the time between marks, in their order, to the lines that ran."""

    def __init__(self) -> None:
        self._last = Boundary(0.0, 0, [])
        #: By whether the GPU may have been idle, the time in which lines ran without marks.
        self._without_marks = {False: Unmarked(), True: Unmarked()}
        self.waits = WaitsByTime()

    @property
    def whole(self) -> float:
        """Seconds until the last mark."""
        return max(self._last.devices, default=0.0)

    def add(
        self,
        devices: tuple[float, ...],
        boundaries: Sequence[Boundary],
        synchronizations: Sequence[tuple[str, float]],
        *,
        idle: bool,
        is_next: bool,
    ) -> None:
        """Add the time since the last mark to the line that ran, or keep it to be divided.

        Args:
            devices: Seconds by device from the start to the mark.
            boundaries: Those since the last mark; the last one is at the mark.
            synchronizations: The calls that waited, and the seconds, of the whole cell.
            idle: Whether the GPU may have been idle since the last mark.
            is_next: Whether the last mark is at the boundary before these.
        """
        before, last = self._last, boundaries[-1]
        last.devices, self._last = devices, last
        # Where a device has come into use in between, its first work is not known.
        if not is_next or len(before.devices) != len(devices):
            count_as_unknown(boundaries)
            return
        passed = max(devices) - max(before.devices)
        of_devices = [now - then for then, now in zip(before.devices, devices, strict=True)]
        segments = [segment for boundary in boundaries for segment in boundary.segments]
        if len(boundaries) > 1 or len(segments) > 1:
            own = last.own - before.own
            unmarked = self._without_marks[idle]
            unmarked.add(passed, own, of_devices, segments)
            if idle:
                unmarked.outlasted(passed - (last.recorded[1] - before.recorded[0]), segments)
            for line, runs, owners in segments:
                for owner in owners:
                    owner.unmarked[idle][line] += runs
            return
        line, _, owners = segments[0]
        least, most = limits(before, last, passed) if idle else (passed, passed)
        line.add_marked(least, most)
        if last.entered - before.left >= LEAST:
            waited = fsum(s for _, s in synchronizations[before.synchronized : last.synchronized])
            self.waits.add(before, last, passed if idle else None, waited)
        part = most / passed if passed else 1.0
        for owner in owners:
            owner.add(most, most - least, [part * seconds for seconds in of_devices])

    def share(self, lines: Iterable[Total]) -> None:
        """Add the time without marks to the lines that ran in it."""
        for may_idle, unmarked in self._without_marks.items():
            found = unmarked.divide(may_idle=may_idle)
            for owner in lines:
                for line, runs in owner.unmarked[may_idle].items():
                    passed, idle, too_low, uncertain = (runs * each for each in found[line])
                    part = passed / unmarked.passed if unmarked.passed else 0.0
                    owner.add(passed, idle, [part * seconds for seconds in unmarked.devices])
                    owner.too_low += too_low
                    owner.uncertain += uncertain


def count_as_unknown(boundaries: Iterable[Boundary]) -> None:
    """Count the runs until these boundaries as unknown."""
    for boundary in boundaries:
        for _, _, owners in boundary.segments:
            for owner in owners:
                owner.unknown += 1


def limits(before: Boundary, end: Boundary, passed: float) -> tuple[float, float]:
    """Return the least and the most work of a segment between two marks.

    For a GPU that may have been idle in between for ``passed``, the time between the marks.
    """
    (begun, recorded), (ending, ended) = before.recorded, end.recorded
    host = end.entered - before.left - end.tracing
    if passed <= ended - begun + _LATENCY:  # all was done when the mark was recorded
        if ending - end.entered > _LATE:  # and perhaps not when the host left the line
            return 0.0, max(passed - (before.left - recorded), 0.0)
        return 0.0, max(min(passed - (ending - end.entered), host), 0.0)
    least = max(passed - (end.entered - begun) - _LATENCY, 0.0)
    return least, max(passed - (before.left - recorded) - end.tracing, least)


class Share(NamedTuple):
    """What a segment without marks has of the time, in seconds."""

    time: float
    #: The part for which the GPU may have been idle.
    idle: float
    #: By how much the time may be too low, and by how much it may be wrong.
    too_low: float
    uncertain: float


class Unmarked:
    """The time in which lines ran without marks, and their segments."""

    def __init__(self) -> None:
        self.passed = 0.0
        #: Seconds of them that measuring took.
        self.own = 0.0
        self.devices: list[float] = []
        self.runs: Counter[Total] = Counter()
        #: How long the GPU worked at least, where that is more than nothing, and what ran.
        self._work: list[tuple[float, Sequence[Segment]]] = []

    def add(
        self, passed: float, own: float, devices: Sequence[float], segments: Sequence[Segment]
    ) -> None:
        """Add the time between two marks, in which measuring took the host ``own``."""
        self.passed += passed
        self.own += own
        self.devices += [0.0] * (len(devices) - len(self.devices))
        for i, seconds in enumerate(devices):
            self.devices[i] += seconds
        for line, runs, _ in segments:
            self.runs[line] += runs
            line.represented += runs

    def outlasted(self, seconds: float, segments: Sequence[Segment]) -> None:
        """Add by how much the time was longer than the host's: for that long the GPU worked."""
        if seconds > 0.0:
            self._work.append((seconds, segments))

    def _unexplained(self, typical: Mapping[Total, float]) -> float:
        """Return how much of that work is more than the runs with marks take."""
        return fsum(
            max(seconds - fsum(typical[line] * count for line, count, _ in segments), 0.0)
            for seconds, segments in self._work
        )

    def divide(self, *, may_idle: bool) -> dict[Total, Share]:
        """Return what a segment of each line has of the time.

        ``may_idle``: the GPU may have been idle; then the measuring may have been the reason.
        """
        runs = self.runs
        of_one = {line: line.estimate() for line in runs}
        least, bound, typical, most, error = (
            {line: runs[line] * of_one[line][i] for line in runs} for i in range(5)
        )
        idle = {line: most[line] - least[line] for line in runs}
        if not may_idle:
            # The GPU may have been idle in the runs with marks: half of what is not certain.
            middle = {line: (least[line] + typical[line]) / 2 for line in runs}
            for line in runs:
                error[line] = hypot(error[line], typical[line] - middle[line])
            time, error = self._by_errors(middle, error)
            if min(time.values(), default=0.0) >= 0.0:
                return {
                    line: Share(time[line] / count, 0.0, 0.0, error[line] / count)
                    for line, count in runs.items()
                }
        time, rest = _filled(dict.fromkeys(runs, 0.0), least, self.passed)
        has_rest = rest > 0.0
        # What measuring delays is idle: first, the lines that have work.
        working = {line: typical[line] * (least[line] > 0.0) for line in runs}
        time, rest = _filled(time, working, rest)
        time, rest = _filled(time, typical, rest)
        time, rest = _filled(time, most, rest)
        certain = {line: min(time[line], least[line]) for line in runs}
        if may_idle:
            rest = max(rest - self.own, 0.0)
            more = min(rest, _MORE_IDLE * fsum(idle.values()))
            time, rest = _add(time, idle, more), rest - more
        if not may_idle:
            certain = _add(certain, most, rest)
        time = _add(time, most if any(most.values()) else dict(runs), rest)
        if may_idle:  # of which a line has no more than it takes the host
            for line, count in runs.items():
                host = max(line.host, 0.0) * count / max(line.hits, count)
                host += _LATENCY * count * (least[line] > 0.0)
                time[line] = min(time[line], certain[line] + host)
                bound[line] = min(bound[line], certain[line] + host)
        unexplained = self._unexplained({line: of_one[line].typical for line in runs})
        return {
            line: Share(
                time[line] / count,
                max(time[line] - certain[line], 0.0) / count,
                max(bound[line] - time[line], 0.0) / count if has_rest else 0.0,
                max(error[line], unexplained) / count,
            )
            for line, count in runs.items()
        }

    def _by_errors(
        self, typical: dict[Total, float], error: dict[Total, float]
    ) -> tuple[dict[Total, float], dict[Total, float]]:
        """Return the lines' times by what their runs with marks take, and their errors.

        They must add up to the time that has passed: what is lacking is the more a line's, the less
        is known of it (weighted least squares).
        """
        squares = {line: each**2 for line, each in error.items()}
        whole, lacking = fsum(squares.values()), self.passed - fsum(typical.values())
        time = _add(typical, squares if whole else typical, lacking)
        if abs(lacking) > _ERRORS * sqrt(whole) + _SMALL * self.passed:
            # The runs without marks are others than those with marks: it may be any line's.
            return time, dict.fromkeys(error, abs(lacking))
        return time, {
            line: each * sqrt(max(1 - squares[line] / whole, 0.0)) if whole else 0.0
            for line, each in error.items()
        }


def _filled(
    time: dict[Total, float], limit: dict[Total, float], rest: float
) -> tuple[dict[Total, float], float]:
    """Return the times up to a limit, as far as the time goes, and the rest of it."""
    lacking = {line: max(limit[line] - time[line], 0.0) for line in time}
    added = min(rest, fsum(lacking.values()))
    return _add(time, lacking, added), rest - added


def _add(
    time: dict[Total, float], weights: Mapping[Total, float], seconds: float
) -> dict[Total, float]:
    """Return the times with more, divided by weights."""
    total = fsum(weights.values())
    return {line: time[line] + (seconds * weights[line] / total if total else 0.0) for line in time}
