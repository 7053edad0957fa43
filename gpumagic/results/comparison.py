"""Measurements compared, and read from files, which ``.save(path)`` writes as JSON."""

from __future__ import annotations

import json
import math
import shlex
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gpumagic.errors import SpecError
from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
from gpumagic.render.units import DASH, bytes_, share
from gpumagic.results.base import VERSION, Result, Series
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.timing import CudaTiming
from gpumagic.system.paths import opened, shown

#: The most characters of a file.
_MOST_CHARACTERS = 64 * 2**20
#: Numbers in a file are below this, as the numbers of clocks and counters are.
_LARGEST_NUMBER = 1e20
#: The most notes of a result in a file.
_MOST_NOTES = 300
_KINDS = {kind.__name__: kind for kind in (CudaTiming, MemoryDelta)}

#: ``"noise"``: the difference is not larger than the noise.
Verdict = Literal["faster", "slower", "noise"]
Quantity = Literal["wall", "gpu"]
#: What each quantity is called on the screen.
NAMES: Mapping[Quantity, str] = {"wall": "wall time", "gpu": "GPU time"}


@dataclass(frozen=True)
class Ratio:
    """How many times as long a time is as that of the baseline: 2.0 is twice as long."""

    #: The ratio of the medians; None where one of them is a bound, or the baseline's is 0.
    value: float | None = None
    #: The least and the most that the ratio may be, by the 95 % confidence intervals of both
    #: medians. A median that is a bound has an interval from what is sure. None where there are too
    #: few repeats, or nothing is sure.
    interval: tuple[float, float] | None = None
    #: None where the interval does not show it.
    verdict: Verdict | None = None

    @property
    def differs(self) -> bool:
        """Whether the times differ by more than the noise, and by more than is shown."""
        is_one = self.value is not None and _times(self.value) == _times(1.0)
        return self.verdict in ("faster", "slower") and not is_one

    @property
    def text(self) -> str:
        """The ratio as it is shown; empty where nothing is known."""
        if self.interval is None:
            return "" if self.value is None else f"{_times(self.value)}, fewer than 6 repeats"
        low, high = self.interval
        spread = f"{_times(low)}\N{EN DASH}{_times(high)}"
        if self.verdict is None:
            if not low or high == math.inf:
                return f"at least {_times(low)}" if low else f"at most {_times(high)}"
            return f"{spread} times"
        if not self.differs:
            return f"no difference ({spread})"
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
    """A timing, with its two ratios to the baseline; those of the baseline itself are empty."""

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
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"


@dataclass(frozen=True, repr=False)
class MemoryComparison(Result):
    """Peaks above the start in bytes, by CUDA ordinal: now and stored."""

    peaks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _blocks(self) -> Iterator[Block]:
        yield Grid.of(
            ((ordinal, *peaks) for ordinal, peaks in self.peaks.items()),
            Column("Device", lambda of: f"cuda:{of[0]}"),
            Figures("Peak", lambda of: bytes_(of[1])),
            Figures("Stored", lambda of: bytes_(of[2])),
            Figures("Change", lambda of: share(of[1] / of[2] - 1, 1, sign=True) if of[2] else DASH),
        )


# --- files ----------------------------------------------------------------------------------------


def load(path: str | Path) -> CudaTiming | MemoryDelta:
    """Read a result that ``.save(path)`` has written to a file.

    Nothing in the file is executed, and data that is no result is refused.

    Raises:
        SpecError: the file cannot be read, or contains no result.

    Examples:
        >>> timing = gpumagic.cudatime("sum(range(100))", n=1, r=1)
        >>> path = timing.save("step.json")
        >>> gpumagic.load("step.json") == timing
        True

    .. versionadded:: 0.1.0
    """
    how = f"--save {shlex.quote(shown(path))}, or .save(path), writes one"
    try:
        with opened(path) as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SpecError(f"cannot read {shown(path)}: {reason}; {how}") from None
    if len(text) > _MOST_CHARACTERS:
        raise SpecError(f"{shown(path)} is larger than any result of gpumagic")
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("no result")
        if content.get("gpumagic") != VERSION:
            raise SpecError(f"{shown(path)} was written by another version; save it again")
        result: CudaTiming | MemoryDelta = _read(_KINDS[content["kind"]], content["result"])
        if isinstance(result, CudaTiming):
            kernels = () if result.kernels is None else result.kernels.kernels
            if min(result.loops, result.repeat, *(each.count for each in kernels)) < 1:
                raise ValueError("no run")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SpecError(f"{shown(path)} holds no result of gpumagic; {how}") from None
    return result


def _read(kind: object, data: object) -> Any:
    """Return a value of an annotation from its form in JSON; it causes no import and no call.

    Raises:
        ValueError: the data is not of that kind.
        TypeError: a field without a default is missing.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(data, dict):
        hints = _hints(kind)
        return kind(**{name: _read(hints[name], data[name]) for name in hints if name in data})
    if origin in (Union, types.UnionType):
        for each in arguments:
            with suppress(ValueError):
                return _read(each, data)
    if origin is tuple and isinstance(data, list):
        if arguments[0] is str and len(data) > _MOST_NOTES:
            raise ValueError("too many notes")
        kinds = arguments[:1] * len(data) if arguments[1:] == (...,) else arguments
        return tuple(_read(each, item) for each, item in zip(kinds, data, strict=True))
    if origin in (Mapping, dict) and isinstance(data, dict):
        key, value = arguments
        return {key(name): _read(value, item) for name, item in data.items()}
    if origin is Literal and data in arguments:
        return data
    if isinstance(data, (int, float)) and not abs(data) < _LARGEST_NUMBER:
        raise ValueError(f"{data} is no number that is measured")  # nor is NaN
    if kind is float and type(data) is int:
        return float(data)
    if kind in (str, bool, int, float, type(None)) and type(data) is kind:
        return data
    raise ValueError(f"{type(data).__name__} where {kind} is expected")


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}
