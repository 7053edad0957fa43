"""Where the GPU time of a cell went, kernel by kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.results.base import Result

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Kernel:
    """All runs of one kernel. Seconds."""

    #: As the profiler writes it, with its whole signature.
    name: str
    count: int
    total: float
    shortest: float
    longest: float
    #: The CUDA ordinals that it ran on.
    devices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Copy:
    """All copies or fills of one kind. Seconds."""

    #: ``Memcpy HtoD (Pageable -> Device)``, ``Memset (Device)`` and so on.
    name: str
    count: int
    total: float
    #: None where the profiler does not say for all of them.
    bytes: int | None = None


@dataclass(frozen=True)
class KernelReport(Result):
    """The kernels and copies of one run under torch's profiler. Seconds."""

    #: The longest total first.
    kernels: tuple[Kernel, ...] = ()
    copies: tuple[Copy, ...] = ()
    #: From the start of the code until everything was done, under the profiler.
    window: float | None = None
    #: By CUDA ordinal: how long at least one kernel or copy was running. Overlaps count once.
    busy: Mapping[int, float] = field(default_factory=dict)
    #: Launches of single kernels, of CUDA graphs; None where they are not recorded.
    launches: int | None = None
    graph_launches: int = 0
    #: Launches without a kernel, and kernels without a launch: records that are missing.
    lost_kernels: int = 0
    lost_launches: int = 0
    #: Whether the profiler could see the GPU. If not, nothing above means anything.
    visible: bool = True
    #: The file that the profiler's trace was written to.
    trace: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """The sum of all kernels' times; more than ``busy`` where kernels overlap."""
        return sum(kernel.total for kernel in self.kernels)

    @property
    def count(self) -> int:
        """How many kernels ran."""
        return sum(kernel.count for kernel in self.kernels)

    @property
    def agrees(self) -> bool | None:
        """Whether each launch has its kernel and each kernel its launch; None if not known."""
        if not self.visible or self.launches is None:
            return None
        return not (self.lost_kernels or self.lost_launches)

    def busy_share(self, ordinal: int) -> float | None:
        """The part of the window in which the device was busy, 0 to 1."""
        if not self.window or ordinal not in self.busy:
            return None
        return min(self.busy[ordinal] / self.window, 1.0)

    def __repr__(self) -> str:
        if not self.visible:
            return "<KernelReport: the profiler cannot see the GPU>"
        return f"<KernelReport: {self.count} kernels, {self.total:.6g} s>"

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a kernel, and one a kind of copy (needs pandas). Seconds."""
        import pandas

        columns = ["name", "kind", "count", "total", "share", "shortest", "longest", "bytes"]
        rows = [
            {**dataclasses.asdict(kernel), "kind": "kernel", "share": kernel.total / self.total}
            for kernel in self.kernels
            if self.total
        ]
        rows += [{**dataclasses.asdict(copy), "kind": "copy"} for copy in self.copies]
        return pandas.DataFrame(rows, columns=columns)
