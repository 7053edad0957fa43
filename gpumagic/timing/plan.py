"""How often to run, how precisely to measure, and under which conditions."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from gpumagic.errors import SpecError

#: Repeats when only the number of loops is given, as ``%timeit``'s.
DEFAULT_REPEAT = 7
#: Without a number of repeats: the precision of the median at which to stop, and the seconds after
#: which to stop anyway.
DEFAULT_PRECISION, DEFAULT_MAX_TIME = 0.01, 3.0
#: Seconds that a repeat lasts at least where the number of repeats is given, and that of the loops
#: is not: as ``%timeit``'s.
MIN_REPEAT_TIME = 0.2
#: Seconds that code runs at least to read its energy: fifty steps of NVML's counter.
ENERGY_SECONDS = 1.0


@dataclass(frozen=True)
class Plan:
    """How often to run, and under which conditions; None where the benchmark decides.

    Raises:
        SpecError: a number out of range, or two options that contradict each other.
    """

    loops: int | None = None
    repeat: int | None = None
    warmup: int | None = None
    #: Half the width of the median's 95 % confidence interval, as a part of the median.
    precision: float | None = None
    #: Seconds.
    max_time: float | None = None
    queued: bool = False
    cold: bool = False
    #: Whether the host's speed is measured beside the repeats.
    host_speed: bool = False
    #: The number of repeats below which time alone does not end them.
    least: int = 1

    def __post_init__(self) -> None:
        for name, value, least in (
            ("n", self.loops, 1),
            ("r", self.repeat, 1),
            ("w", self.warmup, 0),
        ):
            if value is not None and not isinstance(value, Integral):
                raise SpecError(f"{name} is a {type(value).__name__}, but must be a whole number")
            if value is not None and value < least:
                raise SpecError(f"{name} is {value}, but must be {least} or more")
        for name, share in (("precision", self.precision), ("max_time", self.max_time)):
            if share is not None and not isinstance(share, Real):
                wanted = {"precision": "a part of the median, as 0.01", "max_time": "seconds, as 2"}
                raise SpecError(f"{name} is a {type(share).__name__}, but must be {wanted[name]}")
            if share is not None and not share > 0:
                raise SpecError(f"{name} is {share:g}, but must be above 0")
            if share is not None and self.repeat is not None:
                option = f"--{name.replace('_', '-')} ({name}=…)"
                raise SpecError(
                    f"-r {self.repeat} (r={self.repeat}) repeats leave nothing for {option} to "
                    "decide: leave one of the two out"
                )
        if self.cold and self.loops not in (None, 1):
            raise SpecError(
                "--cold (cold=True) empties the cache before each loop, so that a repeat is one "
                f"loop: leave -n {self.loops} (n={self.loops}) out, and say -r (r=…) how many"
            )

    @property
    def open_end(self) -> bool:
        """Whether precision or time ends the repeats, not their number."""
        if self.repeat is not None:
            return False
        return self.loops is None or not (self.precision is self.max_time is None)

    @property
    def repeats(self) -> int:
        """The number of repeats, where that ends them."""
        return DEFAULT_REPEAT if self.repeat is None else self.repeat

    @property
    def exact(self) -> bool:
        """Whether the code runs exactly as often as asked for."""
        return not self.open_end and self.warmup is not None


def round_up(value: float) -> int:
    """Return the next number of the series 1, 2, 5, 10, 20 and so on."""
    decade = 1
    while True:
        for step in (1, 2, 5):
            if step * decade >= value * 0.999:
                return step * decade
        decade *= 10
