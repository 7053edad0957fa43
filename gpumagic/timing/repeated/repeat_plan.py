"""How often to run, and when to stop: what is asked for, and what the benchmark decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from gpumagic.errors import SpecError

#: Repeats when only the number of loops is given, as ``%timeit``'s.
DEFAULT_REPEAT = 7
#: Without a number of repeats: the precision of the median at which to stop, and the seconds after
#: which to stop anyway.
PRECISION, DEFAULT_MAX_TIME = 0.01, 3.0
#: Repeats before the first test, and the factor between tests: each test of the same data is
#: another opportunity to stop by chance, so there are few.
FIRST_LOOK, _NEXT_LOOK = 10, 1.25


@dataclass(frozen=True)
class Plan:
    """How often to run, and under which conditions; None where the benchmark decides.

    Raises:
        SpecError: a number out of range, or two options that contradict each other.
    """

    loops: int | None = None
    asked_repeats: int | None = None
    warmup: int | None = None
    #: Seconds.
    max_time: float | None = None
    cold: bool = False

    def __post_init__(self) -> None:
        counts = {"n": (self.loops, 1), "r": (self.asked_repeats, 1), "w": (self.warmup, 0)}
        for name, (value, least) in counts.items():
            if value is not None and not (isinstance(value, Integral) and value >= least):
                raise SpecError(f"{name} is {value!r}, but must be a whole number, {least} or more")
        if self.max_time is not None:
            if not isinstance(self.max_time, Real) or not self.max_time > 0:
                raise SpecError(f"max_time is {self.max_time!r}, but must be seconds above 0")
            if self.asked_repeats is not None:
                r = self.asked_repeats
                raise SpecError(
                    f"-r {r} (r={r}) and --max-time (max_time=…) both end the repeats: leave one "
                    "of the two out"
                )
        if self.cold and self.loops not in (None, 1):
            raise SpecError(
                "--cold (cold=True) empties the cache before each loop, so that a repeat is one "
                f"loop: leave -n {self.loops} (n={self.loops}) out, and say -r (r=…) how many"
            )

    @property
    def open_end(self) -> bool:
        """Whether precision or time ends the repeats, not their number."""
        return self.asked_repeats is None and (self.loops is None or self.max_time is not None)

    @property
    def repeats(self) -> int:
        """The number of repeats, where their number ends the repeats."""
        return DEFAULT_REPEAT if self.asked_repeats is None else self.asked_repeats

    @property
    def is_exact(self) -> bool:
        """Whether the code runs in the repeats alone: without a warm-up, or a single time."""
        return self.warmup == 0 or (self.loops == self.asked_repeats == 1 and self.warmup is None)


def round_up(value: float) -> int:
    """Return the next number of the series 1, 2, 5, 10, 20 and so on."""
    decade = int(10 ** math.floor(math.log10(max(value, 1.0))))
    return next(step * decade for step in (1, 2, 5, 10) if step * decade >= value * 0.999)


def next_look(count: int) -> int:
    """Return the number of repeats after which to test again."""
    return max(FIRST_LOOK, math.ceil(count * _NEXT_LOOK))
