"""Timings compared with a baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
from gpumagic.render.units import DASH
from gpumagic.results.base import Series
from gpumagic.results.timing.cuda_timing import CudaTiming

#: ``"noise"``: the difference is not larger than the noise.
Verdict = Literal["faster", "slower", "noise"]
Quantity = Literal["wall", "gpu"]
#: What each quantity is called on the screen.
NAMES: Mapping[Quantity, str] = {"wall": "wall time", "gpu": "GPU time"}


@dataclass(frozen=True)
class Ratio:
    """How many times as long a time is as the baseline's: 2.0 is twice as long."""

    #: The ratio of the medians; None where one of them is a bound, or the baseline's is 0.
    value: float | None = None
    #: The least and the most that the ratio may be, by the 95 % confidence intervals of both
    #: medians. A median that is a bound has an interval from what is sure: where that sets no upper
    #: end, this is None. None for both where there are too few repeats, or nothing is sure.
    interval: tuple[float, float | None] | None = None
    #: None where the interval does not show it.
    verdict: Verdict | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval, with infinity for an open end."""
        if self.interval is None:
            return None
        low, high = self.interval
        return low, math.inf if high is None else high

    @property
    def differs(self) -> bool:
        """Whether the times differ by more than the noise, and by more than is shown."""
        is_one = self.value is not None and _times(self.value) == _times(1.0)
        return self.verdict in ("faster", "slower") and not is_one

    @property
    def text(self) -> str:
        """The ratio as it is shown; empty where nothing is known."""
        if self.bounds is None:
            return "" if self.value is None else f"{_times(self.value)} times, fewer than 6 repeats"
        low, high = self.bounds
        spread = f"{_times(low)}\N{EN DASH}{_times(high)}"
        if self.verdict is None:
            if not low or high == math.inf:
                return f"at least {_times(low)} times" if low else f"at most {_times(high)} times"
            return f"{spread} times"
        if not self.differs:
            return f"within noise ({spread})"
        value = self.value
        if self.verdict == "faster":
            low, high, value = 1 / high, (1 / low if low else math.inf), value and 1 / value
            spread = f"{_times(low)}\N{EN DASH}{_times(high)}"
        cross = f"\N{MULTIPLICATION SIGN} {self.verdict}"
        if value is not None:
            return f"{_times(value)}{cross} ({spread})"
        return f"at least {_times(low)}{cross}" if high == math.inf else f"{spread}{cross}"


@dataclass(frozen=True)
class Compared:
    """A timing, with its two ratios to the baseline. The baseline's own ratios are empty."""

    name: str
    timing: CudaTiming
    wall: Ratio = Ratio()
    gpu: Ratio = Ratio()
    #: The time that counts: the wall time, which is what people wait for; the GPU time where both
    #: timings are GPU-bound.
    quantity: Quantity = "wall"

    @property
    def headline(self) -> Ratio:
        """The ratio of the time that counts."""
        return self.gpu if self.quantity == "gpu" else self.wall

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the time that counts."""
        return self.headline.verdict


@dataclass(frozen=True, repr=False)
class Comparison(Series[Compared]):
    """Timings compared with the first of them, the baseline."""

    _sequence = "entries"
    _index = ("name",)

    entries: tuple[Compared, ...]
    notes: tuple[str, ...] = ()

    @property
    def baseline(self) -> str:
        """The name of the timing that the others are compared with."""
        return self.entries[0].name

    def __getitem__(self, key: str | int | slice) -> Any:
        """Return an entry by its name or its index; those of a slice as a tuple.

        Raises:
            KeyError: no such name.
        """
        return {e.name: e for e in self}[key] if isinstance(key, str) else self.entries[key]

    def _headline(self) -> Line:
        return Line.of(", ".join(f"{each.name} wall {each.timing.wall_text}" for each in self))

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield the medians in seconds and the ratios of each timing."""
        for entry in self:
            timing = entry.timing
            gpu = None if timing.gpu is None else timing.gpu.median
            record = {"name": entry.name, "wall": timing.wall.median, "gpu": gpu}
            record["cpu"] = timing.cpu.median
            for name, ratio in (("wall", entry.wall), ("gpu", entry.gpu)):
                low, high = ratio.interval or (None, None)
                record |= {f"{name}_ratio": ratio.value, f"{name}_low": low, f"{name}_high": high}
            record |= {"quantity": entry.quantity, "verdict": entry.verdict}
            yield {**record, "repeat": timing.repeat, "loops": timing.loops}

    def _blocks(self) -> Iterator[Block]:
        slowest = max(entry.timing.wall.median for entry in self) or 1.0

        def wall(entry: Compared) -> Styled:
            return Styled(entry.timing.wall_text, bar=entry.timing.wall.median / slowest)

        def gpu(entry: Compared) -> str:
            # A bound on the time of a GPU that may not have worked compares with nothing.
            known = entry.timing.gpu_seen or not entry.timing.gpu_at_most
            return entry.timing.gpu_text if known else DASH

        def ratio(entry: Compared, quantity: Quantity) -> Styled:
            if entry is self.entries[0]:
                return Styled("baseline", "dim")
            found = entry.gpu if quantity == "gpu" else entry.wall
            counts = quantity == entry.quantity
            if not (found.text and counts and found.differs):
                return Styled(found.text or ("not known" if counts else DASH), "dim")
            return Styled(found.text, "good" if found.verdict == "faster" else "warn")

        counts = [entry.name for entry in self if entry.quantity == "gpu"]
        which = "the wall time counts"
        if len(counts) == len(self) - 1:
            which = "the GPU time counts: all are GPU-bound"
        elif counts:
            which += f"; for {', '.join(counts)} the GPU's: both are GPU-bound"
        yield Grid.of(
            self,
            Column("Name", lambda entry: entry.name, least=8),
            Figures("Wall", wall),
            Column("Compared", lambda entry: ratio(entry, "wall"), least=12, wrap=True),
            Figures("GPU", gpu),
            Column("Compared", lambda entry: ratio(entry, "gpu"), least=12, wrap=True),
        )
        legend = f"Compared with {self.baseline}, by 95 % confidence intervals; {which}"
        yield Line.of(legend, "dim")


def _times(ratio: float) -> str:
    """Return a ratio with three significant digits, or as an integer from 100 on."""
    if 0 < ratio < 0.005:
        return "< 0.01"
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"
