"""The times of each line of a cell: ``%%cudatime --lines``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Style, Styled, Text
from gpumagic.render.units import at_most, seconds
from gpumagic.results.base import Series
from gpumagic.results.source_table import Source
from gpumagic.wording import plural

#: A line with less than this part of the time of all lines is dim, and may be left out.
_NEGLIGIBLE = 1e-3
#: A line with at least this part of the time is emphasised.
_HOT = 0.2
#: Seconds of the host below which a line is not distinguished from tracing.
_RESOLUTION = 1e-6


@dataclass(frozen=True)
class LineTiming:
    """The times of a line in seconds: all its runs, with the functions that it called."""

    #: Counted as in tracebacks: the magic's own line is 1.
    line: int
    source: str
    hits: int = 0
    #: From the end of all GPU work queued before the line to the end of all work queued by its end;
    #: None where not known. Work that ran beside an earlier line's work counts to the earlier line.
    gpu: float | None = None
    #: Python's time in the line.
    host: float = 0.0
    #: In how many of the hits the host waited for GPU work of earlier lines, and how long: by time,
    #: those which ended when that work did.
    syncs: int = 0
    sync_time: float = 0.0
    #: Whether ``gpu`` is an upper bound: the GPU may have been idle in between.
    at_most: bool = False
    #: By CUDA ordinal, as ``gpu`` of that device alone; and the devices of which it is a bound.
    per_device: Mapping[int, float] = field(default_factory=dict)
    bounds: tuple[int, ...] = ()


@dataclass(frozen=True)
class SourceTimings(Source):
    """The times of the lines of the cell, or of a function."""

    #: The lines that ran.
    lines: tuple[LineTiming, ...] = ()


@dataclass(frozen=True, repr=False)
class LineTimings(Series[LineTiming]):
    """The times of the lines of a cell: a sequence of the lines that ran.

    The GPU times of the lines and of ``between`` add up to the cell's. The lines of functions are
    in ``functions``: their times are a part of the times of the lines that call them.
    """

    cell: SourceTimings
    functions: tuple[SourceTimings, ...] = ()
    #: Time that belongs to no line: the measurement itself, work on streams that are not torch's.
    #: Its ``line`` is 0.
    between: LineTiming | None = None
    #: What limits the cell, in one line with the evidence; None where the figures do not show it.
    verdict: str | None = None
    notes: tuple[str, ...] = ()

    _sequence = "cell.lines"

    @property
    def _sources(self) -> tuple[SourceTimings, ...]:
        return (self.cell, *self.functions)

    def _blocks(self) -> Iterator[Block]:
        """Yield what limits the cell, and the tables of the lines."""
        if self.verdict is not None:
            yield Line.of(self.verdict, "strong")
        for source in self._sources:
            if source is not self.cell:
                yield Line.of(source.name, "strong")
            between = self.between if source is self.cell else None
            yield _timing_grid(source, between) if source.lines else source.nothing()

    def _remarks(self) -> list[Line]:
        """Return the waits of the lines, and the notes."""
        waits = [
            f"{'' if source is self.cell else f'{source.name}, '}line {line.line} waited for the "
            f"GPU in {'at least ' if line.syncs < line.hits else ''}{plural(line.syncs, 'run')}: "
            f"{seconds(line.sync_time)}"
            for source in self._sources
            for line in source.lines
            if line.syncs
        ]
        return Line.notes((*waits, *self.notes))

    _index = ("function", "line")

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield each line that ran, with its time on each device. Seconds."""
        named = [(source.name, line) for source in self._sources for line in source.lines]
        if self.between is not None:
            named.append(("cell", self.between))
        for name, line in named:
            figures = {**vars(line), "source": line.source.strip()}
            devices = {f"cuda:{i}": gpu for i, gpu in figures.pop("per_device").items()}
            figures.pop("bounds")
            yield {"function": name, **figures, **devices}


class _Cost:
    """What lines cost: the GPU's time, or the host's where it says better which line is slow."""

    def __init__(self, source: SourceTimings, between: LineTiming | None) -> None:
        lines = [*source.lines, *([] if between is None else [between])]
        bounds = fsum(line.gpu or 0.0 for line in lines if line.at_most)
        self.has_gpu = any(line.gpu is not None for line in source.lines)
        #: Where most GPU times are upper bounds, the host's say more.
        self.by_gpu = self.has_gpu and bounds <= fsum(line.gpu or 0.0 for line in lines) / 2
        self._longest = max(map(self.of, lines)) or 1.0
        self._all = fsum(map(self.of, lines)) or 1.0
        #: Where the host has little to do beside the GPU, parts of its time are noise.
        self._hosts = max(fsum(line.host for line in lines), self._all)

    def of(self, line: LineTiming) -> float:
        """Return the seconds that a line costs."""
        return (line.gpu or 0.0) if self.by_gpu else line.host

    def has_row(self, line: LineTiming) -> bool:
        """Return whether a line has a row, however many lines there are."""
        part = max(self.of(line) / self._all, line.host / self._hosts)
        return line.syncs > 0 or part >= _NEGLIGIBLE

    def gpu(self, line: LineTiming) -> Text:
        text = at_most(line.gpu, line.at_most) if self.has_gpu else ""
        return self._with_bar(text, line) if self.by_gpu else text

    def host(self, line: LineTiming) -> Text:
        # The host's time of a line that ran is never 0, only not known as exactly.
        text = "< 1 µs" if line.hits and line.host < _RESOLUTION else seconds(line.host)
        return text if self.by_gpu else self._with_bar(text, line)

    def _with_bar(self, text: str, line: LineTiming) -> Styled:
        part = self.of(line) / self._all
        style: Style = "strong" if part >= _HOT else "dim" if part < _NEGLIGIBLE else ""
        return Styled(text, style, min(1.0, self.of(line) / self._longest))


def _timing_grid(source: SourceTimings, between: LineTiming | None) -> Grid:
    """Return the table of a source; ``between`` is a row below its lines."""
    cost = _Cost(source, between)
    lines = {line.line: line for line in source.lines}
    rows = source.rows({number for number, line in lines.items() if cost.has_row(line)})
    items = {row: _together([lines[number] for number in row if number in lines]) for row in rows}
    if between is not None:
        items[range(0)] = between
    devices = sorted({i for line in source.lines for i in line.per_device})

    def on(i: int) -> Column[LineTiming]:
        return Figures(f"cuda:{i}", lambda of: at_most(of.per_device.get(i), i in of.bounds), 4)

    return source.grid(
        items,
        Figures("Hits", lambda line: f"{line.hits:,}" if line.hits else "", rank=2),
        Figures("GPU", cost.gpu),
        *(map(on, devices) if len(devices) > 1 else ()),
        Figures("Host", cost.host),
        # A line below the table says it, too.
        Figures("Waited", lambda line: seconds(line.sync_time) if line.syncs else "", rank=3),
    )


def _together(lines: Sequence[LineTiming]) -> LineTiming | None:
    """Return the times of a row: of one line, or the sums of the lines that are left out."""
    if len(lines) < 2:
        return lines[0] if lines else None
    gpu = [line.gpu for line in lines if line.gpu is not None]
    host, is_bound = fsum(line.host for line in lines), any(line.at_most for line in lines)
    return LineTiming(0, "", gpu=fsum(gpu) if gpu else None, host=host, at_most=is_bound)
