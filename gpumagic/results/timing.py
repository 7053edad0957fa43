"""The times of a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, Style, dim_lines
from gpumagic.render.units import bytes_, cpu_seconds, seconds, share
from gpumagic.results.base import data_frame
from gpumagic.results.compilation import Compilation, GraphBreak
from gpumagic.results.conditions import Conditions
from gpumagic.results.json_file import StorableResult
from gpumagic.results.kernels import KernelReport
from gpumagic.results.line_timing import LineTimings
from gpumagic.results.quality import Quality
from gpumagic.results.sample import Sample
from gpumagic.results.work import compilation_lines, work_lines
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

    from gpumagic.render.plots import Plot

Bound = Literal["gpu", "host"]

#: The least time to compile that is shown, in seconds, as in ``%time``.
_LONG_COMPILE = 0.1
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))

#: ``gpu_note`` of a time with no sign of work, until the lines have shown some or it is left out.
NO_SIGN = "at most: no sign of GPU work was seen"


@dataclass(frozen=True)
class CudaTiming(StorableResult):
    """The times of a cell in seconds: GPU time by CUDA events, wall time, CPU time."""

    #: From the start of the cell until the last device had finished, by CUDA events; None where
    #: there is no GPU time, and ``gpu_note`` says why.
    gpu: Sample | None
    #: From the start of the cell until its code and its GPU work had finished.
    wall: Sample
    #: CPU time of this process, user and system, all threads.
    cpu: Sample
    per_device: Mapping[int, Sample] = field(default_factory=dict)
    #: torch's type of the devices: ``"cuda"`` (also for ROCm), ``"mps"``, ``"xpu"``…
    backend: str = "cuda"
    loops: int = 1
    repeat: int = 1
    warmup: int = 0
    #: Seconds spent in compiling the cell before the clock was started.
    compile_time: float = 0.0
    #: What limited the cell: ``"gpu"``, ``"host"``, or None where not known.
    bound: Bound | None = None
    #: The evidence for ``bound``; one line.
    bound_evidence: str | None = None
    #: GPU time without launch overhead: all work was queued before the GPU began. None where it was
    #: not measured; if it could not be, ``queued_note`` says why.
    queued: Sample | None = None
    queued_note: str | None = None
    #: The quality of the repeats; None for a single run.
    quality: Quality | None = None
    #: Wall times of the runs in which torch.compile compiled; no other figure includes them.
    compilations: tuple[float, ...] = ()
    #: From the start of the cell until its Python code returned; GPU work may be unfinished.
    host: Sample | None = None
    cpu_user: Sample | None = None
    cpu_system: Sample | None = None
    #: Seconds in which threads of this process waited for a CPU, added up; None where the system
    #: does not count it.
    cpu_wait: Sample | None = None
    #: Whether an exception or an interrupt ended the run, so that the figures are partial.
    partial: bool = False
    #: Whether ``gpu`` is an upper bound: the GPU had finished about when the code returned, so that
    #: it may have been idle meanwhile, waiting for the host.
    gpu_at_most: bool = False
    #: Why there is no GPU time, or a remark on it; one line.
    gpu_note: str | None = None
    #: The kernels of one more run under the profiler, and the lines; None without their options.
    kernels: KernelReport | None = None
    lines: LineTimings | None = None
    notes: tuple[str, ...] = ()
    #: The compilations by torch.compile meanwhile, as torch records them.
    compiled: tuple[Compilation, ...] = ()
    #: The graph breaks in them, by line and torch's reason.
    graph_breaks: tuple[GraphBreak, ...] = ()
    #: Floating-point operations of a loop by torch's counter, and their rate as a share of the
    #: card's dense peak, where the card and the only dtype are known; None without ``--flops``.
    flops: int | None = None
    peak_share: float | None = None
    #: Joules of a loop and mean watts, by NVML's counter; None without ``--energy``, or for the
    #: reason in a note.
    energy: float | None = None
    power: float | None = None
    #: The machine and the versions; None for a result without a measurement.
    conditions: Conditions | None = None
    #: Whether a single run is shown with a row for each time, instead of in one line.
    show_rows: bool = False

    def _blocks(self) -> list[Block]:
        ended_by_itself = self.quality is not None and self.quality.stopped_by is not None
        # An interrupted benchmark may have one repeat, but is shown as a benchmark.
        stopped = self.partial and self.quality is not None
        repeated = self.repeat > 1 or self.loops > 1 or ended_by_itself or stopped
        return [
            *(self.lines.tables() if self.lines is not None else []),
            *(_statistics(self) if repeated else _single(self)),
            *(self.lines.remarks() if self.lines is not None else []),
            *_work(self),
            *dim_lines(_notes(self)),
        ]

    def __repr__(self) -> str:
        gpu = "-" if self.gpu is None else f"{self.gpu.median:.6g} s"
        return f"<CudaTiming: gpu {gpu}, wall {self.wall.median:.6g} s>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a repeat: seconds per loop (needs pandas)."""
        columns = {"gpu": self.gpu, "wall": self.wall, "cpu": self.cpu, "host": self.host}
        columns |= {f"cuda:{i}": sample for i, sample in self.per_device.items()}
        repeats = len(self.wall.all)
        data: dict[str, Sequence[float]] = {"repeat": range(1, repeats + 1)}
        for name, sample in columns.items():
            # The first repeats have no GPU time if CUDA was initialised in them.
            values = () if sample is None else sample.all
            data[name] = [math.nan] * (repeats - len(values)) + list(values)
        return data_frame(data, index="repeat")

    def plot(self) -> Plot:
        """Return a picture: the timeline of the runs, and beside it their distribution.

        Raises:
            DependencyError: matplotlib is not installed.
        """
        from gpumagic.render import plots

        plot = plots.new_plot(3)
        name = "GPU" if self.gpu is not None else "wall"
        rows = {name: self._timed}
        if len(self.per_device) > 1:
            busy = {i: sample for i, sample in self.per_device.items() if sample.worst > 0}
            rows.update((f"cuda:{i}", sample) for i, sample in busy.items())
        scale, unit = time_unit(list(rows.values()))
        timeline, spread = plot.figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
        highest = max(map(without_outliers, rows.values())) / scale
        lowest = min(sample.best for sample in rows.values()) / scale
        series = {
            label: ([v / scale for v in sample.all], sample.median / scale, seconds(sample.median))
            for label, sample in rows.items()
        }
        beyond = plots.draw_runs(timeline, spread, series, (lowest, highest))
        margin = 0.08 * (highest - lowest) or 0.1 * highest or 1.0
        timeline.set_ylim(max(lowest - margin, 0), highest + margin)
        title = "runs"
        if beyond:
            worst = seconds(max(sample.worst for sample in rows.values()))
            title += f"; {plural(beyond, 'repeat')} above, up to {worst}"
        bound = ", at most" if self.gpu_at_most else ""
        timeline.set(xlabel="repeat", ylabel=f"{name} time per loop{bound} ({unit})", title=title)
        spread.set(xlabel="repeats", title="distribution; the line is the median")
        if len(rows) > 1:
            timeline.legend(frameon=False)
        return plot

    # TimeitResult's attributes, for the GPU times (for the wall times where there is no GPU).

    @property
    def _timed(self) -> Sample:
        return self.wall if self.gpu is None else self.gpu

    @property
    def timings(self) -> list[float]:
        """Seconds per loop, one value a repeat."""
        return list(self._timed.all)

    @property
    def all_runs(self) -> list[float]:
        """Seconds of all loops of a repeat, one value a repeat."""
        return [value * self.loops for value in self._timed.all]

    @property
    def best(self) -> float:
        return self._timed.best

    @property
    def worst(self) -> float:
        return self._timed.worst

    @property
    def average(self) -> float:
        return self._timed.mean

    @property
    def stdev(self) -> float:
        return self._timed.stdev


def without_outliers(sample: Sample) -> float:
    """Return the largest time that is not far above the others."""
    first, third = sample.quartiles
    limit = third + 5 * max(third - first, 0.01 * third)
    return max(value for value in sample.all if value <= limit)


def time_unit(samples: Sequence[Sample]) -> tuple[float, str]:
    """Return the unit for the largest of all times: its seconds and its name."""
    largest = max(sample.worst for sample in samples)
    return next((unit for unit in _UNITS if largest >= unit[0]), _UNITS[-1])


def _rows(result: CudaTiming) -> list[tuple[str, Sample | None, Style]]:
    """Return the name, the times and the style of each row."""
    rows: list[tuple[str, Sample | None, Style]] = [("GPU", result.gpu, "strong")]
    if len(result.per_device) > 1 or (result.gpu is None and result.per_device):
        rows += [(f"  {result.backend}:{i}", sample, "") for i, sample in result.per_device.items()]
    if result.queued is not None:
        rows.append(("  queued", result.queued, ""))
    rows += [("Wall", result.wall, ""), ("CPU", result.cpu, "")]
    # Where the run did not wait for the GPU, only the host's time is certain.
    unfinished = result.partial and result.host != result.wall
    if result.host is not None and (result.gpu is not None or unfinished):
        rows.append(("Host", result.host, "dim"))
    return rows


def _at_most(result: CudaTiming, name: str) -> str:
    """Return ``≤`` before a row's time if that is an upper bound."""
    return (
        "≤ "
        if result.gpu_at_most
        and name in ("GPU", *(f"  {result.backend}:{i}" for i in result.per_device))
        else ""
    )


def _work(result: CudaTiming) -> list[Block]:
    gpu = None if result.gpu is None else result.gpu.median
    lines = work_lines(
        result.flops,
        gpu,
        result.peak_share,
        result.energy,
        result.power,
        at_most=result.gpu_at_most,
    )
    return [
        *map(Line.of, lines),
        *compilation_lines(result.compiled, result.graph_breaks),
    ]


def _one_line(result: CudaTiming) -> list[Block]:
    """Return a single run in one line, as ``%timeit`` shows its own."""
    parts = list[list[Cell]]()
    if result.gpu is not None:
        named = [f"{result.backend}:{i}" for i in result.per_device] or ["the GPU"]
        devices = f"on {named[0] if len(named) == 1 else plural(len(named), 'device')}"
        figure = _at_most(result, "GPU") + seconds(result.gpu.median)
        parts.append([Cell(figure, "strong"), Cell(f" {devices}")])
        if len(result.per_device) > 1:
            each = [
                f"{result.backend}:{i} {_at_most(result, 'GPU')}{seconds(sample.median)}"
                for i, sample in result.per_device.items()
            ]
            parts.append([Cell(", ".join(each))])
    leads = not parts
    parts.append([Cell("wall "), Cell(seconds(result.wall.median), "strong" if leads else "")])
    parts.append([Cell(f"CPU {cpu_seconds(result.cpu.median)}")])
    if result.host is not None and any(name == "Host" for name, _, _ in _rows(result)):
        parts.append([Cell(f"Python returned after {seconds(result.host.median)}")])
    return [Line([cell for part in parts for cell in (Cell(" · "), *part)][1:])]


def _single(result: CudaTiming) -> list[Block]:
    if not result.show_rows:
        return _one_line(result)
    columns, rows = (Column("What"), Column("Time", "right"), Column("Remark", rank=1)), []
    for name, sample, style in _rows(result):
        shown = cpu_seconds if name == "CPU" else seconds
        figure = _at_most(result, name) + shown(sample.median if sample else None)
        label = Cell(name, "dim" if style == "dim" else "")
        rows.append((label, Cell(figure, style), Cell(_remark(result, name), "dim")))
    return [Grid(columns, rows, header=False)]


def _remark(result: CudaTiming, name: str) -> str:
    """Return the remark on a row's time."""
    if name == "GPU" and len(result.per_device) == 1 and result.gpu is not None:
        return f"{result.backend}:{next(iter(result.per_device))}"
    if name == "CPU" and result.cpu_user is not None and result.cpu_system is not None:
        user, system = result.cpu_user.median, result.cpu_system.median
        return f"user {cpu_seconds(user)}, sys {cpu_seconds(system)}"
    if name == "Host":
        return "until the code returned"
    return ""


def _statistics(result: CudaTiming) -> list[Block]:
    columns = (
        Column("Per loop"),
        Column("Median", "right"),
        Column("IQR", "right"),
        Column("Min", "right", rank=1),
        Column("Max", "right", rank=1),
        Column("Mean ± std", "right", rank=2),
    )
    rows = []
    for name, sample, style in _rows(result):
        if sample is None:
            cells = [Cell(seconds(None))] * (len(columns) - 1)
        else:
            shown = partial(cpu_seconds, loops=result.loops) if name == "CPU" else seconds
            spread = f"{shown(sample.mean)} ± {shown(sample.stdev)}"
            dim: Style = "dim" if style == "dim" else ""
            cells = [
                Cell(_at_most(result, name) + shown(sample.median), style),
                *(Cell(shown(value), dim) for value in (sample.iqr, sample.best, sample.worst)),
                Cell(spread, "dim"),
            ]
        rows.append((Cell(name, "dim" if style == "dim" else ""), *cells))
    return [Grid(columns, rows), Line.of(_count(result), "dim")]


def _count(result: CudaTiming) -> str:
    """Return the number of repeats and loops, and why the repeats ended."""
    quality = result.quality
    repeats = plural(result.repeat, "repeat")
    if result.partial and quality is not None and quality.asked is not None:
        repeats = f"{result.repeat:,} of {plural(quality.asked, 'repeat')}"
    stopped = ", stopped early" if result.partial else ""
    count = f"{repeats}, {plural(result.loops, 'loop')} each{stopped}"
    if quality is None or quality.stopped_by is None:
        return count
    if quality.precision is None:
        precision = "too few for the precision of the median"
    else:
        bound = "less than " * (quality.precision < 0.001)
        precision = f"the median is known to {bound}±{share(max(quality.precision, 0.001), 1)}"
    end = {"max-time": "the time limit was reached", "precision": "as precise as requested"}
    return f"{count}; {precision}: {end[quality.stopped_by]}"


def _notes(result: CudaTiming) -> list[str]:
    notes = [] if result.gpu_note is None else [result.gpu_note]
    notes += _bound(result)
    notes += _quality(result)
    if result.compile_time > _LONG_COMPILE:
        notes.append(f"compiled in {seconds(result.compile_time)}, which is not counted")
    return [*notes, *result.notes]


def _bound(result: CudaTiming) -> list[str]:
    """Return notes on what limits the code, for repeated runs, and on a missing queued time."""
    notes = []
    if result.bound_evidence is not None and result.quality is not None:
        limits = {
            "gpu": "GPU-bound",
            "host": "host-bound: the GPU waits for work to be launched",
            None: "neither the GPU nor the host clearly limits the code",
        }
        notes.append(f"{limits[result.bound]} ({result.bound_evidence})")
    if result.queued_note is not None:
        notes.append(f"no queued GPU time: {result.queued_note}")
    return notes


def _quality(result: CudaTiming) -> list[str]:
    """Return notes on the repeats: compilations, drift, outliers, throttling."""
    notes = []
    if result.compilations:
        runs = len(result.compilations)
        times = ", ".join(seconds(value) for value in result.compilations)
        which = "the first run" if runs == 1 else f"the first {runs} runs"
        notes.append(f"torch.compile compiled in {which}, not counted: {times}")
    quality = result.quality
    if quality is None:
        return notes
    if quality.flushed is not None:
        sizes = ", ".join(f"cuda:{i} {bytes_(size)}" for i, size in quality.flushed.items())
        notes.append(f"L2 cache flushed before each loop: {sizes or 'there is no GPU in use'}")
    if quality.drift is not None:
        took = f"{share(abs(quality.drift), 1)} {'less' if quality.drift < 0 else 'more'} time"
        notes.append(f"drift: the second half of the repeats took {took}")
    if quality.outliers:
        count = f"{len(quality.outliers):,} of {plural(result.repeat, 'repeat')}"
        worst = seconds(max(quality.outliers))
        notes.append(f"outliers: {count}, up to {worst}; all are counted")
    for ordinal, reasons in (quality.throttled or {}).items():
        notes.append(f"cuda:{ordinal}'s clock was throttled: {', '.join(reasons)}")
    return notes
