"""What is known of the times of one run, or of queued runs; `summary` makes a result of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpumagic.results.timing.sample import Sample, is_bound

#: Seconds by which the waits for an idle device differ. Two wall times that differ by less are
#: equal.
SLACK = 20e-6


class Reading(NamedTuple):
    """What is known of a device: it worked for ``lower`` to ``upper`` seconds since the start."""

    lower: float
    upper: float
    #: When the work that outlasted the code had ended, at least; 0 where none did.
    end_least: float = 0.0
    #: Whether something shows that the device worked at all; and whether it may have worked on a
    #: stream that is not torch's, as the wait for it was long.
    sign: bool = False
    maybe: bool = False
    #: Whether the device got its context after the start; and whether no run before this one was
    #: timed on it.
    new: bool = False
    first: bool = False


@dataclass(frozen=True)
class Times:
    """The times of one run, in seconds."""

    host: float
    cpu: float
    #: Until the code and its GPU work had finished: at least, and at most.
    wall_least: float
    wall: float
    #: By CUDA ordinal.
    readings: Mapping[int, Reading] = field(default_factory=dict)
    #: Why there is no GPU time.
    note: str | None = None
    #: Seconds for which some GPU surely worked, by what lines show.
    surely: float = 0.0

    def with_work(self, surely: Mapping[int | None, float]) -> Times:
        """Return the times, with more that is known of the GPUs' work.

        ``surely`` has by CUDA ordinal the seconds for which each device surely worked, and under
        None the seconds for which some device did.
        """
        readings = {
            i: each._replace(lower=max(each.lower, min(surely[i], each.upper)), sign=True)
            for i, each in self.readings.items()
            if i in surely
        }
        return replace(self, readings={**self.readings, **readings}, surely=surely[None])

    @property
    def wall_at_most(self) -> bool:
        """Whether the wall time is only an upper bound."""
        return is_bound(self.wall, self.wall_least + SLACK)

    @property
    def signs(self) -> list[int]:
        """The ordinals of the devices that show a sign of work."""
        return [i for i, reading in self.readings.items() if reading.sign]

    @property
    def lower(self) -> float:
        """Seconds for which some GPU worked, at least."""
        least = max((each.lower for each in self.readings.values()), default=0.0)
        return min(max(least, self.surely), self.upper)

    def upper_of(self, ordinal: int) -> float:
        """Return the most that a device worked: nothing where it had no context."""
        return self.readings[ordinal].upper if ordinal in self.readings else 0.0

    @property
    def upper(self) -> float:
        """The most seconds for which GPUs worked: the GPUs that may have, if there are any."""
        readings = self.readings.values()
        shown = [each for each in readings if each.sign or each.maybe] or readings
        return max((each.upper for each in shown), default=0.0)


class Queued(NamedTuple):
    """The work of some loops, queued behind a delay: the GPU works it off without a gap."""

    #: Seconds of all loops of each run.
    seconds: tuple[float, ...]
    loops: int
    device: int
    #: Seconds of each run that the events around it may have taken.
    events: float

    @property
    def sample(self) -> Sample:
        """The seconds of a loop."""
        return Sample(tuple(each / self.loops for each in self.seconds))

    @property
    def at_least(self) -> Sample:
        return Sample(tuple((each - self.events) / self.loops for each in self.seconds))


def sure_part(runs: Sequence[Times]) -> float:
    """Return the part of the median time for which a GPU has surely worked."""
    upper = statistics.median(run.upper for run in runs)
    return statistics.median(run.lower for run in runs) / upper if upper else 0.0
