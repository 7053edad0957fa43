"""How long a cell took."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from gpumagic.results.base import Result
from gpumagic.results.kernels import KernelReport
from gpumagic.results.quality import Quality

if TYPE_CHECKING:
    import pandas

Bound = Literal["gpu", "host"]


@dataclass(frozen=True)
class Sample:
    """Times of one quantity in seconds: one value a repeat, the mean over that repeat's loops."""

    all: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.all:
            raise ValueError("a Sample needs at least one value")

    @property
    def median(self) -> float:
        return statistics.median(self.all)

    @property
    def mean(self) -> float:
        return math.fsum(self.all) / len(self.all)

    @property
    def stdev(self) -> float:
        """Population standard deviation, as IPython's ``TimeitResult`` computes it."""
        mean = self.mean
        return math.sqrt(math.fsum((x - mean) ** 2 for x in self.all) / len(self.all))

    @property
    def best(self) -> float:
        return min(self.all)

    @property
    def worst(self) -> float:
        return max(self.all)

    def quantile(self, q: float) -> float:
        """The ``q``-quantile (0 to 1), interpolated linearly."""
        ordered = sorted(self.all)
        position = q * (len(ordered) - 1)
        low = math.floor(position)
        high = math.ceil(position)
        return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

    @property
    def iqr(self) -> float:
        """Interquartile range."""
        return self.quantile(0.75) - self.quantile(0.25)

    def __repr__(self) -> str:
        return f"<Sample: median {self.median:.6g} s of {len(self.all)}>"


@dataclass(frozen=True)
class CudaTiming(Result):
    """How long a cell took: on the GPU by CUDA events, on the wall, on the CPU. Seconds."""

    #: From the start of the cell until the last device had finished, by CUDA events; None where
    #: there is no GPU time, and ``gpu_note`` says why.
    gpu: Sample | None
    #: From the start of the cell until everything, GPU work included, had finished.
    wall: Sample
    #: CPU time of this process, user and system, all threads.
    cpu: Sample
    per_device: Mapping[int, Sample] = field(default_factory=dict)
    #: torch's name of the devices' kind: ``"cuda"`` (also for ROCm), ``"mps"``, ``"xpu"``…
    backend: str = "cuda"
    loops: int = 1
    repeat: int = 1
    warmup: int = 0
    #: Seconds spent in compiling the cell, before the clock was started.
    compile_time: float = 0.0
    #: What limited the cell: ``"gpu"``, ``"host"``, or None where not known.
    bound: Bound | None = None
    #: How ``bound`` is known; one line.
    bound_evidence: str | None = None
    #: GPU time with launch cost hidden: everything was queued before the GPU began. None where it
    #: was not taken, or could not be, and then ``queued_note`` says why.
    queued: Sample | None = None
    queued_note: str | None = None
    #: What the repeats say of themselves; None for a single run.
    quality: Quality | None = None
    #: Wall seconds of the runs in which torch.compile compiled; they are in no other figure.
    compilations: tuple[float, ...] = ()
    #: From the start of the cell until its Python code returned, GPU work possibly unfinished.
    host: Sample | None = None
    cpu_user: Sample | None = None
    cpu_system: Sample | None = None
    #: True if the run ended by an exception or an interrupt, so that the figures are partial.
    partial: bool = False
    #: True if the GPU was done as soon as the code had returned, or nearly: it may have been idle
    #: in between too, waiting for the host, so that ``gpu`` is an upper bound.
    gpu_at_most: bool = False
    #: Why there is no GPU time, or what to bear in mind about it; one line.
    gpu_note: str | None = None
    #: Where the time went, of one more run under the profiler; None if nobody asked.
    kernels: KernelReport | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        gpu = "-" if self.gpu is None else f"{self.gpu.median:.6g} s"
        return f"<CudaTiming: gpu {gpu}, wall {self.wall.median:.6g} s>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a repeat: seconds per loop (needs pandas)."""
        import pandas

        columns = {"gpu": self.gpu, "wall": self.wall, "cpu": self.cpu, "host": self.host}
        columns |= {f"cuda:{i}": sample for i, sample in self.per_device.items()}
        rows = range(1, len(self.wall.all) + 1)
        frame = pandas.DataFrame(index=pandas.RangeIndex(rows.start, rows.stop, name="repeat"))
        for name, sample in columns.items():
            # A repeat in which CUDA came to be has no GPU time: those there are, are the last.
            values = () if sample is None else sample.all
            missing = len(rows) - len(values)
            frame[name] = [math.nan] * missing + list(values)
        return frame

    def plot(self) -> Any:
        """The timeline of the runs and their distribution, a picture for the notebook.

        Raises:
            DependencyError: matplotlib is not installed.
        """
        return import_module("gpumagic.render.plots").plot(self)

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
