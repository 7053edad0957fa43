"""What is known of one run: its times, and of each device between which bounds it worked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpumagic.results.timing import is_bound

#: Seconds that a wait for an idle device may take longer than others, and that are no difference
#: between two wall times.
SLACK = 20e-6


@dataclass(frozen=True)
class Reading:
    """What is known of a device: it worked for ``lower`` to ``upper`` seconds since the start."""

    lower: float
    upper: float
    #: When the work that outlasted the code had ended, at least; 0 where none did.
    end_least: float = 0.0
    #: Something shows that it worked at all; or it may have, on a stream that is not torch's: the
    #: wait for it was long.
    sign: bool = False
    maybe: bool = False
    #: It got its context after the start.
    new: bool = False


@dataclass(frozen=True)
class Times:
    """The times of one run, in seconds."""

    host: float
    cpu: float
    #: Until the code and its GPU work had finished: at least, and at most.
    wall_least: float
    wall: float
    readings: Mapping[int, Reading] = field(default_factory=dict)
    #: Why there is no GPU time.
    note: str | None = None
    #: Seconds for which some GPU surely worked, by what lines show.
    surely: float = 0.0

    def with_work(self, surely: float, devices: Mapping[int, float]) -> Times:
        """Return the times with what is sure besides: of some GPU, and of each that has worked."""
        readings = {
            i: replace(each, lower=max(each.lower, min(devices[i], each.upper)), sign=True)
            if i in devices
            else each
            for i, each in self.readings.items()
        }
        return replace(self, readings=readings, surely=surely)

    @property
    def wall_at_most(self) -> bool:
        """Whether the wall time is only an upper bound."""
        return is_bound(self.wall, self.wall_least + SLACK)

    @property
    def signs(self) -> dict[int, Reading]:
        """The readings of the devices that show a sign of work."""
        return {i: reading for i, reading in self.readings.items() if reading.sign}

    @property
    def lower(self) -> float:
        """Seconds for which some GPU worked, at least."""
        least = max((each.lower for each in self.readings.values()), default=0.0)
        return max(least, min(self.surely, self.upper))

    @property
    def upper(self) -> float:
        """Seconds for which GPUs worked, at most; of those that may have, if there are any."""
        readings = self.readings.values()
        shown = [each for each in readings if each.sign or each.maybe] or readings
        return max((each.upper for each in shown), default=0.0)
