"""The times of a cell, in seconds: `CudaTiming`, which ``%cudatime`` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from operator import itemgetter
from typing import Any, Literal

from gpumagic.render.blocks import Block, Column, Figures, Fold, Grid, Line, Styled, Text
from gpumagic.render.units import DASH, at_most, cpu_seconds, scaled, seconds, share
from gpumagic.results.conditions import Conditions
from gpumagic.results.storable import StorableResult
from gpumagic.results.timing.kernels import KernelReport
from gpumagic.results.timing.line_timings import LineTimings
from gpumagic.results.timing.sample import Sample, is_bound
from gpumagic.wording import plural

Limit = Literal["gpu", "host"]
_LIMITS = {"gpu": "GPU-bound", "host": "host-bound: the GPU waits for work to be launched"}
StoppedBy = Literal["precision", "max-time"]
#: The least time to compile that is shown, in seconds, as in ``%time``.
_LONG_COMPILE = 0.1


@dataclass(frozen=True, repr=False)
class CudaTiming(StorableResult):
    """The times of a cell: GPU time by CUDA events, wall time, CPU time."""

    _index = ("repeat",)

    #: From the start of the cell until the last device had finished, by CUDA events: the GPU's own
    #: time, or an upper bound (``gpu_at_most``). Of host-bound code it is the time of the loops
    #: that were ``queued``. None where there is no GPU time, and ``gpu_note`` says why.
    gpu: Sample | None
    #: From the start of the cell until its code and its GPU work had finished.
    wall: Sample
    #: CPU time of this process, user and system, all threads.
    cpu: Sample
    per_device: Mapping[int, Sample] = field(default_factory=dict)
    loops: int = 1
    repeat: int = 1
    #: Loops run before the repeats, and after them behind a delay: with ``loops * repeat``, all.
    warmup: int = 0
    queued: int = 0
    #: Seconds spent in compiling the cell before the clock was started.
    compile_time: float = 0.0
    #: What limited the cell: ``"gpu"``, ``"host"``, or None where not known.
    limited_by: Limit | None = None
    #: The evidence for ``limited_by``; one line.
    limit_evidence: str | None = None
    #: From the start of the cell until its Python code returned; GPU work may be unfinished.
    host: Sample | None = None
    #: Half the width of the 95 % confidence interval of the median wall time, as a part of it; None
    #: for fewer than 6 repeats.
    precision: float | None = None
    #: What ended the repeats; None where their number was given.
    stopped_by: StoppedBy | None = None
    #: The part of the repeats' time for which Python waited for a processor; None where not known.
    processor_wait: float | None = None
    #: Whether an exception or an interrupt ended the run, so that the figures are partial.
    partial: bool = False
    #: Whether the median of ``gpu`` is an upper bound: the GPU may have been idle meanwhile. Else
    #: it has surely worked for 95 % of it; ``gpu_at_least`` says whether in each repeat, too.
    gpu_at_most: bool = False
    #: For how long the GPU has surely worked; None where nothing shows that.
    gpu_at_least: Sample | None = None
    #: Whether there was a sign of GPU work: a device still worked when Python returned, or memory
    #: was allocated on it. Code that waits for the GPU (``synchronize()``, ``.item()``) leaves as
    #: little as what does not use it: ``lines`` and ``kernels`` tell more.
    gpu_seen: bool = False
    #: Whether ``wall`` is an upper bound: when the GPU had finished is not known exactly.
    wall_at_most: bool = False
    #: Why there is no GPU time, or a remark on it; one line.
    gpu_note: str | None = None
    #: The kernels of one more run under the profiler, and the lines; None without their options.
    kernels: KernelReport | None = None
    lines: LineTimings | None = None
    notes: tuple[str, ...] = ()
    #: Floating-point operations of a loop by torch's counter; None without ``--flops``.
    flops: int | None = None
    #: Joules of a loop and mean watts, by NVML's counter; None without ``--energy``, or for the
    #: reason in a note.
    energy: float | None = None
    power: float | None = None
    #: The machine and the versions; None for a result without a measurement.
    conditions: Conditions | None = None

    @property
    def _is_repeated(self) -> bool:
        return self.repeat > 1 or self.loops > 1 or self.stopped_by is not None

    @property
    def _repeats(self) -> str:
        return f"{plural(self.repeat, 'repeat')}, {plural(self.loops, 'loop')} each"

    def _headline(self) -> Line:
        return Line.join(*[text for part in _figures(self) for text in (" · ", *part)][1:])

    def brief(self) -> list[Block]:
        return [*self._blocks(folded=True), *self._remarks()]

    def _blocks(self, *, folded: bool = False) -> Iterator[Block]:
        line, table = self._headline(), [*_statistics(self)] if self._is_repeated else []
        if self.lines is not None:
            yield from self.lines._blocks()
        yield from [Fold(line, table)] if table and folded else [line, *table]
        if self.lines is not None:
            yield from self.lines._remarks()
        yield from map(Line.of, _work(self))
        if self.kernels is not None:
            yield from self.kernels.blocks()

    def _remarks(self) -> Iterator[Block]:
        if self.gpu_note is not None:
            yield Line.of(self.gpu_note, "dim")
        if self._is_repeated and self.limited_by is not None:
            yield Line.of(f"{_LIMITS[self.limited_by]} ({self.limit_evidence})", "dim")
        if self.compile_time > _LONG_COMPILE:
            yield Line.of(f"compiled in {seconds(self.compile_time)}, which is not counted", "dim")
        yield from super()._remarks()

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """Yield the seconds per loop of each repeat."""
        samples = {"gpu": self.gpu, "wall": self.wall, "cpu": self.cpu, "host": self.host}
        samples |= {f"cuda:{i}": sample for i, sample in self.per_device.items()}
        # Those of queued runs belong to none of the repeats: they come in their own order.
        times = zip_longest(*(sample.all if sample else () for sample in samples.values()))
        for i, each in enumerate(islice(times, len(self.wall.all)), 1):
            yield {"repeat": i, **dict(zip(samples, each, strict=True))}

    @property
    def gpu_text(self) -> str:
        """The median GPU time as it is shown: ``≤ 1.20 ms``; a dash if there is none."""
        return at_most(None if self.gpu is None else self.gpu.median, self.gpu_at_most)

    @property
    def wall_text(self) -> str:
        return at_most(self.wall.median, self.wall_at_most)


def not_seen(most: float) -> str:
    """Return what is said of a GPU that may not have worked: code that waits leaves no sign."""
    return f"no GPU work seen (≤ {seconds(most)})"


def _shows_host(result: CudaTiming) -> bool:
    # Where the run did not wait for the GPU, only the host's time is certain.
    return result.gpu is not None or (result.partial and result.host != result.wall)


def _figures(result: CudaTiming) -> Iterator[tuple[Text, ...]]:
    """Yield the parts of a line: the GPU time and its devices, the wall time, the CPU time."""
    gpu = result.gpu
    leads = gpu is not None and (result.gpu_seen or not result.gpu_at_most)
    if gpu is not None and leads:
        devices = {f"cuda:{i}": sample.median for i, sample in result.per_device.items()}
        several = len(devices) > 1
        where = plural(len(devices), "device") if several else next(iter(devices), "the GPU")
        shown = result.gpu_text + _spread(gpu, exact=_each_is_exact(result))
        if result.gpu_at_most and result.gpu_at_least is not None:
            where += f", at least {seconds(result.gpu_at_least.median)}"
        yield Styled(shown, "strong"), f" on {where}"
        if several:
            # One may have waited for another: only for all together is it known that some worked.
            yield (", ".join(f"{i} {at_most(time, True)}" for i, time in devices.items()),)
    shown = result.wall_text + _spread(result.wall, exact=not result.wall_at_most)
    wall = ("wall ", Styled(shown, "" if leads else "strong"))
    if result._is_repeated:
        is_spread = not result.wall_at_most or _each_is_exact(result)
        of = "" if result.repeat == 1 else "median ± IQR of " if is_spread else "median of "
        yield *wall, f" per loop ({of}{result._repeats})"
    else:
        yield wall
        yield (f"CPU {cpu_seconds(result.cpu.median)}",)
        known = leads or result.wall_at_most or result.partial
        if result.host is not None and known and _shows_host(result):
            yield (f"Python returned after {seconds(result.host.median)}",)
    if gpu is not None and not leads:
        yield (not_seen(gpu.median),)


def _spread(sample: Sample, *, exact: bool) -> str:
    """Return the spread of repeats; a bound has none, nor has one repeat."""
    return f" ± {seconds(sample.iqr)}" if exact and len(sample.all) > 1 else ""


def _statistics(result: CudaTiming) -> Iterator[Block]:
    """Yield a table of the repeats, and what its figures are."""

    def row(
        name: str, sample: Sample | None, median_is_bound: bool = False, each_is_bound: bool = False
    ) -> list[Text]:
        if sample is None:
            return [name, *[DASH] * 5]
        shown = partial(cpu_seconds, loops=result.loops) if name == "CPU" else seconds
        median = at_most(sample.median, median_is_bound, shown)
        best, worst, mean = (
            at_most(each, each_is_bound, shown) for each in (sample.best, sample.worst, sample.mean)
        )
        iqr, spread = DASH, ""  # as of bounds, or of one repeat
        if not each_is_bound and len(sample.all) > 1:
            iqr, spread = shown(sample.iqr), f" ± {shown(sample.stdev)}"
        middle = Styled(median, "strong") if name == "GPU" else median
        return [name, middle, iqr, best, worst, Styled(f"{mean}{spread}", "dim")]

    # Where only the median is certain, what the other repeats took is not.
    rows = [row("GPU", result.gpu, result.gpu_at_most, not _each_is_exact(result))]
    if len(result.per_device) > 1:
        # The time of one of several devices is an upper bound: it may have waited for another.
        rows += [row(f"  cuda:{i}", each, True, True) for i, each in result.per_device.items()]
    rows += [row("Wall", result.wall, result.wall_at_most, result.wall_at_most)]
    rows += [row("CPU", result.cpu), *([row("Host", result.host)] if _shows_host(result) else [])]
    yield Grid.of(
        rows,
        Column("Per loop", itemgetter(0)),
        Figures("Median", itemgetter(1)),
        Figures("IQR", itemgetter(2)),
        Figures("Min", itemgetter(3), rank=1),
        Figures("Max", itemgetter(4), rank=1),
        Figures("Mean ± std", itemgetter(5), rank=2),
        dim=lambda row: row[0] == "Host",
    )
    host = "; Host: until Python returned" if _shows_host(result) else ""
    yield Line.of(f"IQR: the width of the middle half of the repeats{host}", "dim")
    yield Line.of(_count(result), "dim")


def _each_is_exact(result: CudaTiming) -> bool:
    """Return whether the GPU time of every repeat is exact, not only their median."""
    if result.gpu is None or result.gpu_at_most or result.gpu_at_least is None:
        return not result.gpu_at_most
    pairs = zip(result.gpu_at_least.all, result.gpu.all, strict=False)
    return not any(is_bound(most, least) for least, most in pairs)


def _count(result: CudaTiming) -> str:
    """Return the number of repeats and loops, the loops besides, and why the repeats ended."""
    count = result._repeats
    if result.warmup:
        count += f", after {plural(result.warmup, 'warm-up loop')}"
    if result.queued:
        count += f"; {result.queued:,} more queued beforehand"
    if result.stopped_by is None:
        return count
    precision = "too few for the precision of the median wall time"
    if result.precision is not None:
        least = share(max(result.precision, 0.001), 1)
        precision = f"the median wall time is known to ±{least}"
    end = {"max-time": "the time limit was reached", "precision": "as precise as requested"}
    return f"{count}; {precision}: {end[result.stopped_by]}"


def _work(result: CudaTiming) -> Iterator[str]:
    """Yield a line for the operations and one for the energy of a loop, if they are known."""
    per = " per loop" if result._is_repeated else ""
    if result.flops == 0:
        yield "0 FLOP by torch's counter, which does not count element-wise operations"
    elif result.flops is not None:
        rate = ""
        if result.gpu is not None and result.gpu.median > 0:
            bound = " · ≥ " if result.gpu_at_most else " · "
            rate = f"{bound}{scaled(result.flops / result.gpu.median, 'FLOP/s')}"
        yield f"{scaled(result.flops, 'FLOP')}{per}{rate}"
    if result.energy is not None and result.power is not None:
        yield f"{scaled(result.energy, 'J')}{per} · {result.power:.4g} W"
