"""The times of each line of a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
from gpumagic.render.units import seconds
from gpumagic.results.base import Series, data_frame
from gpumagic.results.folding import folded
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

#: A line with less than this part of the time of all lines is dim, and may be left out.
_NEGLIGIBLE = 1e-3
#: Lines that are left out, but took at least this part of the time together, have their sum shown.
_NOT_NEGLIGIBLE = 0.01
#: A line with at least this part of the time is emphasised.
_HOT = 0.2
#: The least part of the time of all lines that a ``for`` line's wait is reported for.
_WAIT = 0.01
#: Seconds of the host below which a line is not distinguished from tracing.
_RESOLUTION = 1e-6
BETWEEN = "(between the lines)"


@dataclass(frozen=True)
class Synchronization:
    """A call in which the host waited for the GPU, with all its runs in one line."""

    #: ``.item()``, ``torch.cuda.synchronize()``…
    call: str
    count: int
    #: Seconds that the calls took; None where not known.
    time: float | None
    #: Whether the wait is found by times alone: the line ended when the GPU had finished what was
    #: queued before it. ``time`` is then an upper bound.
    at_most: bool = False


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
    #: How often the host waited for the GPU, and how long, as far as known; the calls are in
    #: ``synchronizations``, of which some times are upper bounds.
    syncs: int
    sync_time: float
    #: Whether ``gpu`` is an upper bound: the GPU may have been idle in between.
    at_most: bool
    #: By CUDA ordinal, as ``gpu`` of that device alone.
    per_device: Mapping[int, float] = field(default_factory=dict)
    synchronizations: tuple[Synchronization, ...] = ()
    #: The part of ``host`` that a ``for`` line waited for its next value; None for other lines.
    input_wait: float | None = None
    #: Every how many-th run was measured on the GPU at the end; the others are estimated.
    interval: int = 1
    #: Whether ``gpu`` is a rough estimate, and no bound: the runs differ too much for a sample.
    rough: bool = False
    #: With ``--kernels``, by one more run under the profiler; None where it cannot see the GPU. How
    #: long kernels and copies that the line launched were running: what overlaps counts once, to
    #: the one that began first; the sum over the devices.
    busy: float | None = None
    #: How many kernels the line launched, and the sum of their times.
    kernels: int | None = None
    kernel_time: float | None = None


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
    #: Whether torch.compile has compiled it; compiled code has no lines.
    compiled: bool = False


@dataclass(frozen=True)
class LineTimings(Series[LineTiming]):
    """The times of the lines of a cell: a sequence of those that ran.

    The GPU times of the lines and of ``between`` add up to the cell's, their busy times to those of
    the devices. The lines of functions are in ``functions``: their times are part of those of the
    lines that call them.
    """

    cell: SourceTimings
    functions: tuple[SourceTimings, ...] = ()
    #: Time that belongs to no line: other tasks while the cell awaited, the measurement itself,
    #: work on streams that are not torch's. Its ``line`` is 0.
    between: LineTiming | None = None
    #: What limits the cell, in one line with the evidence; None where the figures do not show it.
    verdict: str | None = None
    notes: tuple[str, ...] = ()
    #: Whether all lines are there; else times of missing ones may be with others.
    complete: bool = True
    #: The part of the wall time that measuring took (0.02: 2 %); None where it took more than is
    #: known, and Python code was slower.
    cost: float | None = 0.0

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
                blocks.append(_grid(source, self.between if source is self.cell else None))
            else:
                blocks.append(Line.of(f"{source.name}: {_why_no_lines(source)}", "dim"))
        return blocks

    def remarks(self) -> list[Block]:
        """Return the waits of the lines, and the notes."""
        waits = (each for source in (self.cell, *self.functions) for each in _waits(source))
        return dim_lines((*waits, *self.notes))

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each line that ran (needs pandas). Seconds."""
        named = [(s.name, line) for s in (self.cell, *self.functions) for line in s.lines]
        devices = sorted({i for _, line in named for i in line.per_device})
        if self.between is not None:
            named.append(("cell", self.between))
        names = ["hits", "gpu", "host", "syncs", "sync_time", "at_most", "input_wait"]
        names += ["busy", "kernels", "kernel_time"]
        rows = [
            (
                *(name, line.line, line.source.strip()),
                *(getattr(line, each) for each in names),
                *(line.per_device.get(i) for i in devices),
            )
            for name, line in named
        ]
        by_device = [f"cuda:{i}" for i in devices]
        unknown = ("gpu", "input_wait", "busy", "kernels", "kernel_time")
        types = dict.fromkeys((*unknown, *by_device), float)
        columns = ["function", "line", "source", *names, *by_device]
        return data_frame(rows, columns, index=["function", "line"], types=types)


def _why_no_lines(source: SourceTimings) -> str:
    if source.empty:
        return "nothing to run"
    if source.compiled:
        return "no lines were seen; torch.compile has compiled it, and compiled code has no lines"
    return "was not seen to run in this cell's thread"


def _cost(line: LineTiming, with_gpu: bool) -> float:
    return (line.gpu or 0.0) if with_gpu else line.host


def _kernels(line: LineTiming) -> str:
    return DASH if line.kernels is None else f"{line.kernels:,}" if line.kernels else ""


def _grid(source: SourceTimings, between: LineTiming | None) -> Grid:
    devices = sorted({i for line in source.lines for i in line.per_device})
    devices = devices if len(devices) > 1 else []
    has_gpu = any(line.gpu is not None for line in source.lines)
    has_busy = any(line.busy is not None for line in source.lines)
    rows_of = [*source.lines, *([] if between is None else [between])]
    longest = max(_cost(line, has_gpu) for line in rows_of) or 1.0
    whole = sum(_cost(line, has_gpu) for line in rows_of) or 1.0
    columns = [
        Column("Line", "right"),
        Column("Hits", "right", rank=2),
        *([Column("GPU", "right")] if has_gpu else []),
        *([Column("Busy", "right"), Column("Kernels", "right", rank=2)] if has_busy else []),
        *(Column(f"cuda:{i}", "right", rank=4) for i in devices),
        Column("Host", "right"),
        # Lines below the table have both.
        Column("Syncs", "right", rank=3),
        Column("Waited", "right", rank=3),
        # A line of source is known by its beginning: it gives way before figures do.
        Column("Source", least=20),
    ]
    by_number = {line.line: line for line in source.lines}

    def figures(line: LineTiming) -> list[Cell]:
        part = _cost(line, has_gpu) / whole
        style: Style = "strong" if part >= _HOT else "dim" if part < _NEGLIGIBLE else ""
        bar = min(1.0, _cost(line, has_gpu) / longest)
        gpu = ("≈ " if line.rough else "≤ " * line.at_most) + seconds(line.gpu)
        return [
            Cell(f"{line.hits:,}" if line.hits else ""),
            *([Cell(gpu, style, bar)] if has_gpu else []),
            *([Cell(seconds(line.busy)), Cell(_kernels(line))] if has_busy else []),
            *(Cell(seconds(line.per_device.get(i))) for i in devices),
            Cell(_host(line)) if has_gpu else Cell(_host(line), style, bar),
            Cell(f"{line.syncs:,}" if line.syncs else ""),
            Cell(_waited(line)),
        ]

    rows = []
    code = SourceCode(source.text)
    hosts = sum(line.host for line in rows_of) or 1.0
    shown = _shown(source, whole, has_gpu)
    for index, number in enumerate(shown):
        if number is None:
            first, last = shown[index - 1], shown[index + 1]
            assert first is not None
            assert last is not None
            left_out = [line for line in source.lines if first < line.line < last]
            sums = _together(left_out)
            part = max(_cost(sums, has_gpu) / whole, sums.host / max(hosts, whole))
            much = part >= _NOT_NEGLIGIBLE
            cells = figures(sums) if much else [Cell("")] * (len(columns) - 2)
            note = f"⋯ {plural(len(left_out), 'line')}" if much else "⋯"
            rows.append([Cell(""), *cells, Cell(note, "dim")])
            continue
        text = Cell.of_code(code, number - source.first)
        line = by_number.get(number)
        cells = [Cell("")] * (len(columns) - 2) if line is None else figures(line)
        rows.append([Cell(str(number), "dim"), *cells, text])
    if between is not None:
        rows.append([Cell(DASH, "dim"), *figures(between), Cell(BETWEEN, "dim")])
    return without_empty(columns, rows)


def _together(lines: Sequence[LineTiming]) -> LineTiming:
    """Return the sums of the times of lines, as of a line that never ran."""

    def total(name: str) -> Any:
        values = [getattr(line, name) for line in lines]
        return None if None in values else sum(values)

    devices = {i for line in lines for i in line.per_device}
    return LineTiming(
        line=0,
        source="",
        hits=0,
        gpu=total("gpu"),
        host=total("host"),
        syncs=0,
        sync_time=0.0,
        at_most=any(line.at_most for line in lines),
        rough=any(line.rough for line in lines),
        per_device={i: sum(line.per_device.get(i, 0.0) for line in lines) for i in devices},
        busy=total("busy"),
        kernels=total("kernels"),
    )


def _host(line: LineTiming) -> str:
    """Return the host's time; that of a line that ran is never 0, only not known as exactly."""
    return "< 1 µs" if line.hits and line.host < _RESOLUTION else seconds(line.host)


def _waited(line: LineTiming) -> str:
    """Return the time that the line waited; a dash where that is not known."""
    if not line.syncs:
        return ""
    is_known = any(each.time is not None for each in line.synchronizations)
    bound = "≤ " * any(each.at_most for each in line.synchronizations)
    return bound + seconds(line.sync_time if is_known or not line.synchronizations else None)


def _shown(source: SourceTimings, whole: float, has_gpu: bool) -> list[int | None]:
    """Return the numbers of the lines to show; see `folded`."""
    hosts = sum(line.host for line in source.lines) or 1.0
    # Where the host has little to do beside the GPU, parts of its time are noise.
    least, least_host = _NEGLIGIBLE * whole, _NEGLIGIBLE * max(hosts, whole)
    # Beside the upper bound of a line that waits on the host, work that is known may be little.
    known = {line.line: line.gpu for line in source.lines if line.gpu and not line.at_most}
    least_known = _NOT_NEGLIGIBLE * sum(known.values())
    relevant = {
        line.line
        for line in source.lines
        if line.syncs
        or _cost(line, has_gpu) >= least
        or line.host >= least_host
        or known.get(line.line, 0.0) > least_known
    }
    return folded(range(source.first, source.first + len(source.text)), relevant)


def _waits(source: SourceTimings) -> list[str]:
    """Return the calls that waited, and the waits for input, for each line."""
    prefix = "" if source.name == "cell" else f"{source.name}, "
    whole = sum(line.host for line in source.lines)
    texts = []
    for line in source.lines:
        if line.synchronizations:
            calls = ", ".join(
                f"{each.call} {each.count:,}×, {'≤ ' * each.at_most}{seconds(each.time)}"
                for each in line.synchronizations
            )
            texts.append(f"{prefix}line {line.line} waits for the GPU: {calls}")
        if line.input_wait and line.input_wait >= _WAIT * whole:
            waited = seconds(line.input_wait)
            texts.append(f"{prefix}line {line.line} waits for the next input: {waited}")
    return texts
