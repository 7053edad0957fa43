"""What is said below the lines' times: what is a sample, what is not known, what measuring took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpumagic.cells.line_tracer import Line
from gpumagic.results.line_timing import LineTiming
from gpumagic.system import text
from gpumagic.timing.line_totals import LineTime

#: The part of the wall time that measuring may take before it is said.
_COST = 0.02
#: The part from which the times of short lines are said to be upper bounds.
_LARGE_COST = 0.2
#: So many lines are named.
_NAMED = 5


class MeasuringCost(NamedTuple):
    """What measuring the lines took, in parts of the wall time."""

    part: float
    #: What it took at least by slowing down the Python code that the lines call.
    slowed: float

    @property
    def known(self) -> float | None:
        """Return what it took; None where it slowed down other code."""
        return None if self.slowed > _COST else min(self.part, 1.0)

    def note(self, *, has_bounds: bool) -> str | None:
        """Return what measuring has cost, if that matters.

        ``has_bounds``: there are GPU times with ``≤``. Of a run between two marks, what the GPU did
        after the host had left the line and before the second mark is not known to be work.
        """
        if self.known is None:
            least = f"{100 * min(self.part + self.slowed, 1.0):.3g} %"
            return (
                f"measuring the lines took at least {least} of the wall time: before Python 3.12 "
                "the Python code that they call is slower with -f, in try, generators and await; "
                "their host times are upper bounds"
            )
        if self.known <= _COST:
            return None
        bounds = "; the host times of short lines are upper bounds"
        bounds += ", their ≤ may lack work below 20 µs" * has_bounds
        took = f"measuring the lines took {100 * self.known:.3g} % of the wall time"
        return took + bounds * (self.known > _LARGE_COST)


def sample_note(lines: Sequence[LineTiming]) -> str | None:
    """Return which lines' GPU times are by a sample, and what an estimate is."""
    rough = "≈ is a rough estimate, since the runs differ"
    is_rough = any(line.rough for line in lines)
    sampled = [line for line in lines if line.interval > 1 and line.gpu is not None]
    if not sampled:
        return rough if is_rough else None
    numbers = ", ".join(f"{line.line} (1 in {line.interval})" for line in sampled[:_NAMED])
    more = f" and {len(sampled) - _NAMED} more" if len(sampled) > _NAMED else ""
    note = f"GPU time by a sample of the runs of {_lines(sampled)} {numbers}{more}"
    return f"{note}; {rough}" if is_rough else note


def unknown_note(times: Mapping[Line, LineTime]) -> str | None:
    """Return why lines have no GPU time although it was measured."""
    numbers = sorted(
        {line.number for line, time in times.items() if time.is_too_low or time.is_wrong}
    )
    if not numbers:
        return None
    named = ", ".join(map(str, numbers[:_NAMED]))
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return (
        f"no GPU time of {_lines(numbers)} {named}{more}: the runs differ too much for a sample of "
        "them; it counts to no line"
    )


def _lines(some: Sequence[object]) -> str:
    return text.plural(len(some), "line").removeprefix(f"{len(some)} ")
