"""Measurements compared, and read from files, which ``.save(path)`` writes as JSON."""

from __future__ import annotations

import json
import math
import shlex
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from gpumagic.errors import SpecError
from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Style, Styled, Text
from gpumagic.render.units import DASH, bytes_, seconds, share
from gpumagic.results.base import VERSION, Result, Series
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.timing import IQR, CudaTiming, Sample
from gpumagic.system.paths import opened, shown

#: The most bytes of a file.
_LARGEST = 64 * 2**20
#: The most characters of an integer.
_DIGITS = 20
_KINDS = {kind.__name__: kind for kind in (CudaTiming, MemoryDelta)}

#: ``"noise"``: the difference is not larger than the noise.
Verdict = Literal["faster", "slower", "noise"]
Quantity = Literal["gpu", "wall"]


@dataclass(frozen=True)
class Compared:
    """A timing compared with the baseline."""

    name: str
    timing: CudaTiming
    #: The ratio of the medians: 2.0 is twice as long. None where one is 0, or a bound that leaves
    #: open which is longer.
    ratio: float | None = None
    #: The ratio's interval from the two medians' 95 % confidence intervals, and what is sure of a
    #: bound; None where there are too few repeats.
    interval: tuple[float, float] | None = None
    #: None for the baseline, and where there is no interval.
    verdict: Verdict | None = None


@dataclass(frozen=True, repr=False)
class Comparison(Series[Compared]):
    """Timings compared by ``%cudatime --compare``; the first is the baseline."""

    _sequence = "entries"
    _index: ClassVar[tuple[str, ...]] = ("name",)

    entries: tuple[Compared, ...]
    #: The times that ``ratio``, ``interval`` and ``verdict`` compare.
    quantity: Quantity
    notes: tuple[str, ...] = ()

    @property
    def baseline(self) -> str:
        """The name of the timing that the others are compared with."""
        return self.entries[0].name

    def sample(self, entry: Compared) -> Sample:
        """Return the times of an entry that are compared."""
        gpu = entry.timing.gpu
        return gpu if self.quantity == "gpu" and gpu is not None else entry.timing.wall

    def __getitem__(self, key: str | int | slice) -> Any:
        """Return an entry by its name or its index; those of a slice as a tuple.

        Raises:
            KeyError: no such name.
        """
        return {e.name: e for e in self}[key] if isinstance(key, str) else self.entries[key]

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield the medians in seconds and the ratio of each timing."""
        for entry in self:
            timing = entry.timing
            low, high = entry.interval or (None, None)
            yield {
                "name": entry.name,
                "gpu": None if timing.gpu is None else timing.gpu.median,
                "wall": timing.wall.median,
                "cpu": timing.cpu.median,
                "iqr": self.sample(entry).iqr,
                "ratio": entry.ratio,
                "ratio_low": low,
                "ratio_high": high,
                "verdict": entry.verdict,
                "repeat": timing.repeat,
                "loops": timing.loops,
            }

    def _blocks(self) -> list[Block]:
        slowest = max(self.sample(entry).median for entry in self)

        def compared(entry: Compared, quantity: Quantity, text: str) -> Text:
            if quantity != self.quantity or (quantity == "gpu" and entry.timing.gpu is None):
                return text
            return Styled(text, "strong", self.sample(entry).median / slowest if slowest else None)

        def gpu(entry: Compared) -> Text:
            # A bound on the time of a GPU that may not have worked compares with nothing.
            known = entry.timing.gpu_seen or not entry.timing.gpu_at_most
            return compared(entry, "gpu", entry.timing.gpu_text if known else DASH)

        def iqr(entry: Compared) -> Styled:
            sample = self.sample(entry)
            return Styled(seconds(sample.iqr) if len(sample.all) > 1 else DASH, "dim")

        def ratio(entry: Compared) -> Styled:
            return Styled("baseline", "dim") if entry is self.entries[0] else _ratio(entry)

        columns: list[Column[Compared]] = [
            Column("Name", lambda entry: entry.name, least=8),
            Figures("GPU", gpu),
            Column(f"Compared with {self.baseline}", ratio, least=12, wrap=True),
            Figures("Wall", lambda e: compared(e, "wall", e.timing.wall_text), rank=1),
            Figures("IQR of GPU" if self.quantity == "gpu" else "IQR of wall", iqr, rank=2),
        ]
        return [Grid.of(self, columns), *Line.notes((*self.notes, IQR))]


def _ratio(entry: Compared) -> Styled:
    """Return how many times faster or slower an entry is, with the interval."""
    ratio = entry.ratio
    if not ratio:
        return Styled("not known", "dim")
    if entry.interval is None:
        return Styled(f"not known ({_times(ratio)}): fewer than 6 repeats", "dim")
    low, high = entry.interval
    faster = ratio < 1 and entry.verdict != "noise"
    if faster:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    text = f"{_times(ratio)}\N{MULTIPLICATION SIGN} {'faster' if faster else 'slower'}"
    same = entry.verdict == "noise" or _times(ratio) == _times(1.0)
    text = "no difference" if same else text
    tone: Style = "dim" if same else "good" if faster else "warn"
    return Styled(f"{text} ({_times(low)}\N{EN DASH}{_times(high)})", tone)


def _times(ratio: float) -> str:
    """Return a ratio with three significant digits, or as an integer from 100 on."""
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"


@dataclass(frozen=True, repr=False)
class MemoryComparison(Result):
    """Peaks above the start in bytes, by CUDA ordinal: now and stored."""

    peaks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        def change(now: int, stored: int) -> str:
            return share((now - stored) / stored, 1, sign=True) if stored else DASH

        columns: list[Column[tuple[int, tuple[int, int]]]] = [
            Column("Device", lambda of: f"cuda:{of[0]}"),
            Figures("Peak", lambda of: bytes_(of[1][0])),
            Figures("Stored", lambda of: bytes_(of[1][1])),
            Figures("Change", lambda of: change(*of[1])),
        ]
        grid = [Grid.of(self.peaks.items(), columns)] if self.peaks or not self.notes else []
        return [*grid, *Line.notes(self.notes)]


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
    how = "--save FILE, or .save(path), writes one"
    try:
        with opened(path) as file:
            text = file.read(_LARGEST + 1)
    except FileNotFoundError as error:
        how = how.replace("FILE", shlex.quote(shown(path)))
        raise SpecError(f"cannot read {shown(path)}: {error.strerror}; {how}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SpecError(f"cannot read {shown(path)}: {reason}") from None
    if len(text) > _LARGEST:
        raise SpecError(f"{shown(path)} is larger than any result of gpumagic")
    try:
        content = json.loads(text, parse_constant=_refuse, parse_float=_number, parse_int=_integer)
        if not isinstance(content, dict):
            raise ValueError("no result")
        if content.get("gpumagic") != VERSION:
            raise SpecError(f"{shown(path)} was written by another version; save it again")
        result: CudaTiming | MemoryDelta = _read(_KINDS[content["kind"]], content["result"])
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
        hints, names = get_type_hints(kind), [each.name for each in fields(kind)]
        return kind(**{name: _read(hints[name], data[name]) for name in names if name in data})
    if origin in (Union, types.UnionType):
        for each in arguments:
            with suppress(ValueError):
                return _read(each, data)
    if origin is tuple and isinstance(data, list):
        kinds = arguments[:1] * len(data) if arguments[1:] == (...,) else arguments
        return tuple(_read(each, item) for each, item in zip(kinds, data, strict=True))
    if origin in (Mapping, dict) and isinstance(data, dict):
        key, value = arguments
        return {key(name): _read(value, item) for name, item in data.items()}
    if origin is Literal and data in arguments:
        return data
    if kind is float and type(data) is int:
        return float(data)
    if kind in (str, bool, int, float, type(None)) and type(data) is kind:
        return data
    raise ValueError(f"{type(data).__name__} where {kind} is expected")


def _number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _integer(text: str) -> int:
    return int(text) if len(text) <= _DIGITS else _refuse(text)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
