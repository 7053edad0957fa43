"""How long something took, as blocks."""

from __future__ import annotations

from functools import partial

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, Style
from gpumagic.render.units import bytes_, cpu_seconds, seconds
from gpumagic.results import CudaTiming, Sample
from gpumagic.system.text import noun, plural

#: Seconds above which the time to compile is worth a word, as in ``%time``.
_LONG_COMPILE = 0.1


def timing(result: CudaTiming) -> list[Block]:
    """The blocks that show ``result``: GPU first, a table if there are several repeats."""
    open_end = result.quality is not None and result.quality.stopped_by is not None
    # Of a run that was to be repeated there may be one repeat: it must say so.
    stopped = result.partial and result.quality is not None
    repeated = result.repeat > 1 or result.loops > 1 or open_end or stopped
    blocks: list[Block] = _statistics(result) if repeated else _single(result)
    for note in _notes(result):
        blocks.append(Line.of(note, "dim"))
    return blocks


def _rows(result: CudaTiming) -> list[tuple[str, Sample | None, Style]]:
    rows: list[tuple[str, Sample | None, Style]] = [("GPU", result.gpu, "strong")]
    if len(result.per_device) > 1 or (result.gpu is None and result.per_device):
        rows += [(f"  {result.backend}:{i}", sample, "") for i, sample in result.per_device.items()]
    if result.queued is not None:
        rows.append(("  queued", result.queued, ""))
    rows += [("Wall", result.wall, ""), ("CPU", result.cpu, "")]
    # Of a run whose GPU work nobody waited for, the host's time is what is certain.
    unfinished = result.partial and result.host != result.wall
    if result.host is not None and (result.gpu is not None or unfinished):
        rows.append(("Host", result.host, "dim"))
    return rows


def _bounded(result: CudaTiming, name: str) -> str:
    """The sign before a figure that is an upper bound."""
    return "≤ " if result.gpu_at_most and name in ("GPU", *_device_names(result)) else ""


def _device_names(result: CudaTiming) -> list[str]:
    return [f"  {result.backend}:{i}" for i in result.per_device]


def _single(result: CudaTiming) -> list[Block]:
    columns = (Column("what"), Column("time", "right"), Column("remark", rank=1))
    rows = []
    for name, sample, style in _rows(result):
        shown = cpu_seconds if name == "CPU" else seconds
        figure = _bounded(result, name) + shown(sample.median if sample else None)
        label = Cell(name, "dim" if style == "dim" else "")
        rows.append((label, Cell(figure, style), Cell(_remark(result, name), "dim")))
    return [Grid(columns, rows, header=False)]


def _remark(result: CudaTiming, name: str) -> str:
    """What stands behind a figure."""
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
        Column("per loop"),
        Column("median", "right"),
        Column("IQR", "right"),
        Column("min", "right", rank=1),
        Column("max", "right", rank=1),
        Column("mean ± std", "right", rank=2),
    )
    rows = []
    for name, sample, style in _rows(result):
        if sample is None:
            cells = [Cell(seconds(None))] * (len(columns) - 1)
        else:
            shown = partial(cpu_seconds, loops=result.loops) if name == "CPU" else seconds
            spread = f"{shown(sample.mean)} ± {shown(sample.stdev)}"
            cells = [
                Cell(_bounded(result, name) + shown(sample.median), style),
                *(Cell(shown(value)) for value in (sample.iqr, sample.best, sample.worst)),
                Cell(spread, "dim"),
            ]
        rows.append((Cell(name, "dim" if style == "dim" else ""), *cells))
    return [Grid(columns, rows), Line.of(_count(result), "dim")]


def _count(result: CudaTiming) -> str:
    """How many runs there were, and why so many."""
    asked = result.quality.asked if result.partial and result.quality is not None else None
    many = result.repeat if asked is None else asked
    done = f"{result.repeat:,} of {asked:,}" if asked is not None else f"{result.repeat:,}"
    repeats = f"{done} {noun(many, 'repeat')}"
    words = [repeats, f"{plural(result.loops, 'loop')} each"]
    if result.partial:
        words.append("stopped early")
    quality = result.quality
    if quality is None or quality.stopped_by is None:
        return ", ".join(words)
    if quality.precision is None:
        known = "too few to tell how well the median is known"
    else:
        known = f"the median is known to ±{quality.precision:.1%}"
    end = "time was over" if quality.stopped_by == "max-time" else "that was enough"
    return f"{', '.join(words)}; {known}: {end}"


def _notes(result: CudaTiming) -> list[str]:
    notes = [] if result.gpu_note is None else [result.gpu_note]
    notes += _bound(result)
    notes += quality_notes(result)
    if result.compile_time > _LONG_COMPILE:
        notes.append(f"compiled in {seconds(result.compile_time)}, which is not counted")
    return [*notes, *result.notes]


def _bound(result: CudaTiming) -> list[str]:
    """What limits the code, for repeated runs, and why there is no queued time."""
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


def quality_notes(result: CudaTiming) -> list[str]:
    """What is out of the ordinary about the repeats."""
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
        notes.append(f"L2 cache emptied before each loop: {sizes or 'there is no GPU in use'}")
    if quality.drift is not None:
        notes.append(f"drift: the second half of the repeats took {quality.drift:+.1%}")
    if quality.outliers:
        far = len(quality.outliers)
        worst = max(quality.outliers)
        notes.append(
            f"{far:,} of {result.repeat:,} repeats far off, up to {seconds(worst)}; all are counted"
        )
    for ordinal, reasons in (quality.throttled or {}).items():
        notes.append(f"cuda:{ordinal}'s clock was held down: {', '.join(reasons)}")
    return notes
