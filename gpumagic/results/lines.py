"""The GPU memory and the times of each line of a cell."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any, ClassVar

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Style, Styled, Text
from gpumagic.render.source_code import source_cells
from gpumagic.render.units import DASH, seconds
from gpumagic.results.base import Result, Series
from gpumagic.results.memory import MemoryDelta
from gpumagic.wording import plural

#: Of more than so many lines in a row without figures, the first and last few are shown.
_LONGEST_GAP, _EDGE = 8, 2
#: What is said of time that belongs to no line.
BETWEEN = "(between the lines)"


def folded(numbers: range, relevant: Container[int]) -> Iterator[range]:
    """Yield the numbers of the lines to show, one by one; irrelevant ones left out together."""
    start = numbers.start
    for number in (*(number for number in numbers if number in relevant), numbers.stop):
        gap = range(start, number)
        if len(gap) > _LONGEST_GAP:
            yield from map(_one, gap[:_EDGE])
            yield gap[_EDGE:-_EDGE]
            gap = gap[-_EDGE:]
        yield from map(_one, gap)
        if number < numbers.stop:
            yield _one(number)
        start = number + 1


def _one(number: int) -> range:
    return range(number, number + 1)


@dataclass(frozen=True)
class Source:
    """The cell, or a function: the base of what was measured of its lines."""

    #: ``cell`` or the function's name.
    name: str
    #: The number of the first line of ``text``.
    first: int
    text: tuple[str, ...]
    #: Whether there is nothing in it to run.
    empty: bool = field(default=False, kw_only=True)

    def nothing(self) -> Line:
        """Return why there are no figures."""
        why = "nothing to run" if self.empty else "was not seen to run in this cell's thread"
        return Line.of(f"{self.name}: {why}", "dim")

    def rows(self, relevant: Container[int]) -> list[range]:
        """Return the lines of each row of a table."""
        return [*folded(range(self.first, self.first + len(self.text)), relevant)]

    def grid(self, rows: Sequence[range], figures: Sequence[Column[range]]) -> Grid:
        """Return a table; the row with no line has what is between the lines."""
        texts = source_cells(self.text)

        def number(lines: range) -> Styled:
            return Styled({0: DASH, 1: str(lines.start)}.get(len(lines), ""), "dim")

        def text(lines: range) -> Styled:
            if len(lines) == 1:
                return texts[lines.start - self.first]
            return Styled(f"⋯ {len(lines)} lines" if lines else BETWEEN, "dim")

        # A line of source is known by its beginning: it gives way before figures do.
        source = Column("Source", text, least=20)
        return Grid.of(rows, [Figures("Line", number), *figures, source])


@dataclass(frozen=True)
class LineMemory:
    """The change of one device's memory by all runs of a line. Bytes, exact.

    Functions that the line calls are included.
    """

    #: Change of the bytes held by live tensors.
    change: int = 0
    #: Highest allocated bytes during a run of the line, above the run's start. A statement is one
    #: run, also with a loop in it such as that of a comprehension.
    peak: int = 0


@dataclass(frozen=True)
class SourceLines(Source):
    """The GPU memory of the lines of the cell, or of a function."""

    #: By CUDA ordinal and line number; lines without a change are absent.
    devices: Mapping[int, Mapping[int, LineMemory]] = field(default_factory=dict)
    #: How often each line ran, by its number; ``change`` is the sum over these runs, ``peak`` the
    #: highest.
    runs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class LineReport(Result):
    """The change of GPU memory by each line of a cell and of the named functions."""

    cell: MemoryDelta
    sources: tuple[SourceLines, ...] = ()
    notes: tuple[str, ...] = ()

    _index: ClassVar[tuple[str, ...]] = ("source", "line", "device")

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield each line with a change. Bytes."""
        for source in self.sources:
            for ordinal, lines in source.devices.items():
                for line, memory in sorted(lines.items()):
                    yield {
                        **{"source": source.name, "line": line, "device": ordinal},
                        "text": source.text[line - source.first].strip(),
                        **vars(memory),
                        "runs": source.runs.get(line),
                    }

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = []
        for source in self.sources:
            if not source.runs:
                blocks.append(source.nothing())
            for ordinal, lines in source.devices.items():
                on = Styled(f" on cuda:{ordinal}", "dim")
                blocks.append(Line.join(Styled(source.name, "strong"), on))
                blocks.append(_memory_grid(source, lines))
        return [*blocks, *self.cell._blocks(), *Line.notes(self.notes)]


def _memory_grid(source: SourceLines, memory: Mapping[int, LineMemory]) -> Grid:
    highest = max((line.peak for line in memory.values()), default=0) or 1

    def hits(lines: range) -> Styled:
        count = source.runs.get(lines.start) if len(lines) == 1 else None
        return Styled("" if count is None else f"{count:,}", "dim")

    def change(lines: range) -> Text:
        line = memory.get(lines.start)
        return Styled.bytes(line.change, sign=True) if line else ""

    def peak(lines: range) -> Text:
        line = memory.get(lines.start)
        return replace(Styled.bytes(line.peak, sign=True), bar=line.peak / highest) if line else ""

    figures = [Figures("Hits", hits, rank=2), Figures("Change", change), Figures("Peak", peak)]
    return source.grid(source.rows(memory), figures)


#: A line with less than this part of the time of all lines is dim, and may be left out.
_NEGLIGIBLE = 1e-3
#: Beside upper bounds, a line with this part of the GPU time that is known is not left out.
_NOT_NEGLIGIBLE = 0.01
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
    #: None where not known. Work that ran beside that of an earlier line counts to that one.
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
    """The times of the lines of a cell: a sequence of those that ran.

    The GPU times of the lines and of ``between`` add up to the cell's. The lines of functions are
    in ``functions``: their times are part of those of the lines that call them.
    """

    cell: SourceTimings
    functions: tuple[SourceTimings, ...] = ()
    #: Time that belongs to no line: the measurement itself, work on streams that are not torch's.
    #: Its ``line`` is 0.
    between: LineTiming | None = None
    #: What limits the cell, in one line with the evidence; None where the figures do not show it.
    verdict: str | None = None
    notes: tuple[str, ...] = ()

    def _items(self) -> tuple[LineTiming, ...]:
        return self.cell.lines

    @property
    def _sources(self) -> tuple[SourceTimings, ...]:
        return (self.cell, *self.functions)

    def _blocks(self) -> list[Block]:
        return [*self.tables(), *self.remarks()]

    def tables(self) -> list[Block]:
        """Return what limits the cell, and the tables of the lines."""
        blocks: list[Block] = []
        if self.verdict is not None:
            blocks.append(Line.of(self.verdict, "strong"))
        for source in self._sources:
            if source is not self.cell:
                blocks.append(Line.of(source.name, "strong"))
            if source.lines:
                between = self.between if source is self.cell else None
                blocks.append(_Table(source, between).grid())
            else:
                blocks.append(source.nothing())
        return blocks

    def remarks(self) -> list[Line]:
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

    _index: ClassVar[tuple[str, ...]] = ("function", "line")

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


def _on_device(line: LineTiming, ordinal: int) -> str:
    bound = "≤ " if ordinal in line.bounds else ""
    return f"{bound}{seconds(line.per_device.get(ordinal))}"


class _Table:
    """The table of a source; ``between`` is a row below its lines."""

    def __init__(self, source: SourceTimings, between: LineTiming | None) -> None:
        self._source = source
        self._between = between
        self._has_gpu = any(line.gpu is not None for line in source.lines)
        devices = sorted({i for line in source.lines for i in line.per_device})
        self._devices = devices if len(devices) > 1 else []
        rows = [*source.lines, *([] if between is None else [between])]
        # Where most GPU times are upper bounds, the host's say which line is slow.
        bounds = fsum(line.gpu or 0.0 for line in rows if line.at_most)
        self._by_gpu = self._has_gpu and bounds <= fsum(line.gpu or 0.0 for line in rows) / 2
        self._longest = max(map(self._cost, rows)) or 1.0
        self._whole = fsum(map(self._cost, rows)) or 1.0
        self._known = fsum(line.gpu or 0.0 for line in source.lines if not line.at_most)
        # Where the host has little to do beside the GPU, parts of its time are noise.
        self._hosts = max(fsum(line.host for line in rows), self._whole)

    def _cost(self, line: LineTiming) -> float:
        return (line.gpu or 0.0) if self._by_gpu else line.host

    def grid(self) -> Grid:
        source = self._source
        by_number = {line.line: line for line in source.lines}
        rows = source.rows({line.line for line in source.lines if self._is_relevant(line)})
        times = {_one(number): line for number, line in by_number.items()}
        for numbers in (each for each in rows if len(each) > 1):
            total = self._together([by_number[each] for each in numbers if each in by_number])
            if max(self._cost(total) / self._whole, total.host / self._hosts) >= _NOT_NEGLIGIBLE:
                times[numbers] = total
        if self._between is not None:
            rows.append(range(0))
            times[range(0)] = self._between

        def figures(header: str, of: Callable[[LineTiming], Text], rank: int = 0) -> Column[range]:
            return Figures(header, lambda row: of(times[row]) if row in times else "", rank)

        by_device = [
            figures(f"cuda:{i}", lambda line, i=i: _on_device(line, i), rank=4)  # type: ignore[misc]
            for i in self._devices
        ]
        columns = [
            figures("Hits", lambda line: f"{line.hits:,}" if line.hits else "", rank=2),
            figures("GPU", self._gpu),
            *by_device,
            figures("Host", self._host),
            # A line below the table says it, too.
            figures("Waited", lambda line: seconds(line.sync_time) if line.syncs else "", rank=3),
        ]
        return source.grid(rows, columns)

    def _is_relevant(self, line: LineTiming) -> bool:
        # Beside the upper bound of a line that waits on the host, known work may be little.
        known = 0.0 if line.at_most else line.gpu or 0.0
        return (
            line.syncs > 0
            or self._cost(line) >= _NEGLIGIBLE * self._whole
            or line.host >= _NEGLIGIBLE * self._hosts
            or known > _NOT_NEGLIGIBLE * self._known
        )

    def _gpu(self, line: LineTiming) -> Text:
        gpu = f"{'≤ ' if line.at_most else ''}{seconds(line.gpu)}" if self._has_gpu else ""
        return self._with_bar(gpu, line) if self._by_gpu else gpu

    def _host(self, line: LineTiming) -> Text:
        # The host's time of a line that ran is never 0, only not known as exactly.
        host = "< 1 µs" if line.hits and line.host < _RESOLUTION else seconds(line.host)
        return host if self._by_gpu else self._with_bar(host, line)

    def _with_bar(self, text: str, line: LineTiming) -> Styled:
        part = self._cost(line) / self._whole
        style: Style = "strong" if part >= _HOT else "dim" if part < _NEGLIGIBLE else ""
        return Styled(text, style, min(1.0, self._cost(line) / self._longest))

    def _together(self, lines: Sequence[LineTiming]) -> LineTiming:
        """Return the sums of the times of lines that are left out."""
        return LineTiming(
            line=0,
            source="",
            gpu=fsum(line.gpu or 0.0 for line in lines) if self._has_gpu else None,
            host=fsum(line.host for line in lines),
            at_most=any(line.at_most for line in lines),
            per_device={
                i: fsum(line.per_device.get(i, 0.0) for line in lines) for i in self._devices
            },
            bounds=tuple({i for line in lines for i in line.bounds}),
        )
