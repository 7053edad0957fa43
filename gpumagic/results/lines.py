"""The GPU memory and the times of each line of a cell."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import TYPE_CHECKING

from gpumagic.render.blocks import (
    DASH,
    Block,
    Cell,
    Column,
    Grid,
    Line,
    Style,
    dim_lines,
    without_empty,
)
from gpumagic.render.source_code import SourceCode
from gpumagic.render.units import bytes_, seconds
from gpumagic.results.base import Result, Series, data_frame
from gpumagic.results.memory import MemoryDelta
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

#: Of more than so many lines in a row without figures, the first and last few are shown.
_LONGEST_GAP, _EDGE = 8, 2


def folded(numbers: Iterable[int], relevant: Container[int]) -> list[int | None]:
    """Return the numbers of the lines to show; None in place of irrelevant ones left out."""
    shown: list[int | None] = []
    irrelevant: list[int | None] = []
    for number in [*numbers, None]:
        if number is not None and number not in relevant:
            irrelevant.append(number)
            continue
        if len(irrelevant) > _LONGEST_GAP:
            irrelevant[_EDGE:-_EDGE] = [None]
        shown += irrelevant
        irrelevant = []
        if number is not None:
            shown.append(number)
    return shown


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
class SourceLines:
    """The lines of the cell, or of a function."""

    #: ``cell`` or the function's name.
    name: str
    #: The number of the first of ``lines``.
    first: int
    lines: tuple[str, ...]
    #: By CUDA ordinal and line number; lines without a change are absent.
    devices: Mapping[int, Mapping[int, LineMemory]] = field(default_factory=dict)
    #: Whether any of it ran.
    ran: bool = True
    #: Whether there is nothing in it to run.
    empty: bool = False
    #: How often each line ran, by its number; ``change`` is the sum over these runs, ``peak`` the
    #: highest.
    runs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LineReport(Result):
    """The change of GPU memory by each line of a cell and of the named functions."""

    cell: MemoryDelta
    sources: tuple[SourceLines, ...] = ()
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = []
        for source in self.sources:
            if source.empty:
                blocks.append(Line.of(f"{source.name}: nothing to run", "dim"))
            elif not source.ran:
                blocks.append(
                    Line.of(f"{source.name}: was not seen to run in this cell's thread", "dim")
                )
            for ordinal, lines in source.devices.items():
                name = Cell(source.name, "strong")
                blocks.append(Line((name, Cell(f" on cuda:{ordinal}", "dim"))))
                blocks.append(_memory_grid(source, lines))
        return [*blocks, *self.cell._blocks(), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.sources)
        return f"<LineReport: {names or self.cell.error or 'nothing'}>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each line with a change (needs pandas). Bytes."""
        rows = [
            (
                s.name,
                line,
                ordinal,
                s.lines[line - s.first].strip(),
                *vars(memory).values(),
                s.runs.get(line),
            )
            for s in self.sources
            for ordinal, lines in s.devices.items()
            for line, memory in sorted(lines.items())
        ]
        figures = ["change", "peak", "runs"]
        index = ["source", "line", "device"]
        types = {"runs": "Int64"}
        return data_frame(rows, [*index, "text", *figures], index=index, types=types)


def _memory_grid(source: SourceLines, lines: Mapping[int, LineMemory]) -> Grid:
    columns = [
        Column("Line", "right"),
        Column("Hits", "right", rank=2),
        Column("Change", "right"),
        Column("Peak", "right"),
        Column("Source", least=36),
    ]
    highest = max((memory.peak for memory in lines.values()), default=0) or 1
    rows = []
    code = SourceCode(source.lines)
    # A file that was edited since may have fewer lines than the code.
    for number in folded(range(source.first, source.first + len(source.lines)), lines):
        if number is None:
            rows.append([*[Cell("")] * 4, Cell("⋯", "dim")])
            continue
        text = Cell.of_code(code, number - source.first)
        memory = lines.get(number)
        count = source.runs.get(number)
        runs = Cell("" if count is None else f"{count:,}", "dim")
        if memory is None:
            rows.append([Cell(str(number), "dim"), runs, *[Cell("")] * 2, text])
            continue
        rows.append(
            [
                Cell(str(number), "dim"),
                runs,
                Cell(bytes_(memory.change, sign=True), "" if memory.change else "dim"),
                Cell(
                    bytes_(memory.peak, sign=True),
                    "" if memory.peak else "dim",
                    memory.peak / highest,
                ),
                text,
            ]
        )
    return without_empty(columns, rows)


#: A line with less than this part of the time of all lines is dim, and may be left out.
_NEGLIGIBLE = 1e-3
#: Beside upper bounds, a line with this part of the GPU time that is known is not left out.
_NOT_NEGLIGIBLE = 0.01
#: A line with at least this part of the time is emphasised.
_HOT = 0.2
#: Seconds of the host below which a line is not distinguished from tracing.
_RESOLUTION = 1e-6
BETWEEN = "(between the lines)"


@dataclass(frozen=True)
class LineTiming:
    """The times of a line in seconds: all its runs, with the functions that it called."""

    #: Counted as in tracebacks: the magic's own line is 1.
    line: int
    source: str
    hits: int
    #: From the end of all GPU work queued before the line to the end of all work queued by its end;
    #: None where not known. Work that ran beside that of an earlier line counts to that one.
    gpu: float | None
    #: Python's time in the line.
    host: float
    #: In how many of the hits the host waited for GPU work of earlier lines, and how long: by time,
    #: those which ended when that work did.
    syncs: int
    sync_time: float
    #: Whether ``gpu`` is an upper bound: the GPU may have been idle in between.
    at_most: bool
    #: By CUDA ordinal, as ``gpu`` of that device alone.
    per_device: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceTimings:
    """The times of the lines of the cell, or of a function."""

    #: ``cell`` or the function's name.
    name: str
    #: The number of the first of ``text``.
    first: int
    text: tuple[str, ...]
    #: The lines that ran.
    lines: tuple[LineTiming, ...] = ()
    #: Whether there is nothing in it to run.
    empty: bool = False


@dataclass(frozen=True)
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

    def __repr__(self) -> str:
        return f"<LineTimings: {plural(len(self), 'line')}>"

    def _blocks(self) -> list[Block]:
        return [*self.tables(), *self.remarks()]

    def tables(self) -> list[Block]:
        """Return what limits the cell, and the tables of the lines."""
        blocks: list[Block] = []
        if self.verdict is not None:
            blocks.append(Line.of(self.verdict, "strong"))
        for source in (self.cell, *self.functions):
            if source is not self.cell:
                blocks.append(Line.of(source.name, "strong"))
            if source.lines:
                between = self.between if source is self.cell else None
                blocks.append(_Table(source, between).grid())
            else:
                why = "was not seen to run in this cell's thread"
                why = "nothing to run" if source.empty else why
                blocks.append(Line.of(f"{source.name}: {why}", "dim"))
        return blocks

    def remarks(self) -> list[Block]:
        """Return the waits of the lines, and the notes."""
        waits = [
            f"{'' if source is self.cell else f'{source.name}, '}line {line.line} waited for the "
            f"GPU in {plural(line.syncs, 'run')}, by time: {seconds(line.sync_time)}"
            for source in (self.cell, *self.functions)
            for line in source.lines
            if line.syncs
        ]
        return dim_lines((*waits, *self.notes))

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each line that ran (needs pandas). Seconds."""
        named = [(s.name, line) for s in (self.cell, *self.functions) for line in s.lines]
        devices = sorted({i for _, line in named for i in line.per_device})
        if self.between is not None:
            named.append(("cell", self.between))
        names = ["hits", "gpu", "host", "syncs", "sync_time", "at_most"]
        rows = [
            (
                *(name, line.line, line.source.strip()),
                *(getattr(line, each) for each in names),
                *(line.per_device.get(i) for i in devices),
            )
            for name, line in named
        ]
        by_device = [f"cuda:{i}" for i in devices]
        columns = ["function", "line", "source", *names, *by_device]
        types = dict.fromkeys(("gpu", *by_device), float)
        return data_frame(rows, columns, index=["function", "line"], types=types)


class _Table:
    """The table of a source; ``between`` is a row below its lines."""

    def __init__(self, source: SourceTimings, between: LineTiming | None) -> None:
        self._source = source
        self._between = between
        self._has_gpu = any(line.gpu is not None for line in source.lines)
        devices = sorted({i for line in source.lines for i in line.per_device})
        self._devices = devices if len(devices) > 1 else []
        rows = [*source.lines, *([] if between is None else [between])]
        self._longest = max(map(self._cost, rows)) or 1.0
        self._whole = fsum(map(self._cost, rows)) or 1.0
        self._known = fsum(line.gpu or 0.0 for line in source.lines if not line.at_most)
        # Where the host has little to do beside the GPU, parts of its time are noise.
        self._hosts = max(fsum(line.host for line in rows), self._whole)

    def _cost(self, line: LineTiming) -> float:
        return (line.gpu or 0.0) if self._has_gpu else line.host

    def grid(self) -> Grid:
        columns = [
            Column("Line", "right"),
            Column("Hits", "right", rank=2),
            *([Column("GPU", "right")] if self._has_gpu else []),
            *(Column(f"cuda:{i}", "right", rank=4) for i in self._devices),
            Column("Host", "right"),
            # A line below the table says it, too.
            Column("Waited", "right", rank=3),
            # A line of source is known by its beginning: it gives way before figures do.
            Column("Source", least=20),
        ]
        source, empty = self._source, [Cell("")] * (len(columns) - 2)
        code = SourceCode(source.text)
        by_number = {line.line: line for line in source.lines}
        relevant = {line.line for line in source.lines if self._is_relevant(line)}
        numbers = folded(range(source.first, source.first + len(source.text)), relevant)
        rows = []
        for place, number in enumerate(numbers):
            if number is None:
                first, last = numbers[place - 1] or 0, numbers[place + 1] or 0
                left_out = [line for line in source.lines if first < line.line < last]
                total, is_much = self._together(left_out)
                note = f"⋯ {plural(len(left_out), 'line')}" if is_much else "⋯"
                figures = self._figures(total) if is_much else empty
                rows.append([Cell(""), *figures, Cell(note, "dim")])
                continue
            line = by_number.get(number)
            text = Cell.of_code(code, number - source.first)
            figures = empty if line is None else self._figures(line)
            rows.append([Cell(str(number), "dim"), *figures, text])
        if self._between is not None:
            rows.append([Cell(DASH, "dim"), *self._figures(self._between), Cell(BETWEEN, "dim")])
        return without_empty(columns, rows)

    def _is_relevant(self, line: LineTiming) -> bool:
        # Beside the upper bound of a line that waits on the host, known work may be little.
        known = 0.0 if line.at_most else line.gpu or 0.0
        return (
            line.syncs > 0
            or self._cost(line) >= _NEGLIGIBLE * self._whole
            or line.host >= _NEGLIGIBLE * self._hosts
            or known > _NOT_NEGLIGIBLE * self._known
        )

    def _figures(self, line: LineTiming) -> list[Cell]:
        part = self._cost(line) / self._whole
        style: Style = "strong" if part >= _HOT else "dim" if part < _NEGLIGIBLE else ""
        bar = min(1.0, self._cost(line) / self._longest)
        # The host's time of a line that ran is never 0, only not known as exactly.
        host = "< 1 µs" if line.hits and line.host < _RESOLUTION else seconds(line.host)
        gpu = "≤ " * line.at_most + seconds(line.gpu)
        return [
            Cell(f"{line.hits:,}" if line.hits else ""),
            *([Cell(gpu, style, bar)] if self._has_gpu else []),
            *(Cell(seconds(line.per_device.get(i))) for i in self._devices),
            Cell(host) if self._has_gpu else Cell(host, style, bar),
            Cell(seconds(line.sync_time) if line.syncs else ""),
        ]

    def _together(self, lines: Sequence[LineTiming]) -> tuple[LineTiming, bool]:
        """Return the sums of the times of lines that are left out, and whether that is much."""
        total = LineTiming(
            line=0,
            source="",
            hits=0,
            gpu=fsum(line.gpu or 0.0 for line in lines) if self._has_gpu else None,
            host=fsum(line.host for line in lines),
            syncs=0,
            sync_time=0.0,
            at_most=any(line.at_most for line in lines),
            per_device={
                i: fsum(line.per_device.get(i, 0.0) for line in lines) for i in self._devices
            },
        )
        part = max(self._cost(total) / self._whole, total.host / self._hosts)
        return total, part >= _NOT_NEGLIGIBLE
