"""The GPU time of a cell, by kernel and by kind of copy."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line, dim_lines, shortened
from gpumagic.render.units import bytes_, percent, seconds
from gpumagic.results.base import Result, data_frame
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

#: The most kernels that are shown, those of the longest total.
_SHOWN = 20
_LONGEST_NAME = 60
NOT_VISIBLE = "torch's profiler cannot see the GPU here"
WHY_NOT_VISIBLE = (
    "CUPTI was refused; in a container it often needs the host's permission: "
    "NVreg_RestrictProfilingToAdminUsers=0"
)


@dataclass(frozen=True)
class Kernel:
    """All runs of one kernel. Seconds."""

    #: As the profiler writes it, with the full signature.
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
    #: None where the profiler does not report it for all of them.
    bytes: int | None = None


@dataclass(frozen=True)
class KernelReport(Result):
    """The kernels and copies of one run under torch's profiler. Seconds."""

    #: The longest total first.
    kernels: tuple[Kernel, ...] = ()
    copies: tuple[Copy, ...] = ()
    #: From the start of the code until its GPU work was done, under the profiler.
    window: float | None = None
    #: By CUDA ordinal, how long at least one kernel or copy was running.
    busy: Mapping[int, float] = field(default_factory=dict)
    #: Launches of single kernels, of CUDA graphs; None where they are not recorded.
    launches: int | None = None
    graph_launches: int = 0
    #: Launches without a kernel, and kernels without a launch: the profiler lost records.
    lost_kernels: int = 0
    lost_launches: int = 0
    #: Whether the profiler could see the GPU. If not, the figures above mean nothing.
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
        """The number of kernels that ran."""
        return sum(kernel.count for kernel in self.kernels)

    @property
    def agrees(self) -> bool | None:
        """Whether each launch has its kernel and each kernel its launch; None if not known."""
        if not self.visible or self.launches is None:
            return None
        return not (self.lost_kernels or self.lost_launches)

    def busy_share(self, ordinal: int) -> float | None:
        """Return the part of the window in which the device was busy, 0 to 1."""
        if not self.window or ordinal not in self.busy:
            return None
        return min(self.busy[ordinal] / self.window, 1.0)

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = []
        if not self.visible:
            why = f"{NOT_VISIBLE}, so there are no kernels to show ({WHY_NOT_VISIBLE})"
            blocks.append(Line.of(why, "warn"))
        elif not self.kernels and not self.copies:
            blocks.append(Line.of("no kernel ran, and nothing was copied", "dim"))
        else:
            blocks += [_busy(self, i, remark=not place) for place, i in enumerate(self.busy)]
            blocks += [_kernel_table(self)] if self.kernels else []
            blocks += _rest(self)
            blocks += [_copy_table(self)] if self.copies else []
            blocks.append(_check(self))
        if self.trace is not None:
            blocks.append(
                Line.of(f"trace written to {self.trace}; ui.perfetto.dev opens it", "dim")
            )
        return [*blocks, *dim_lines(self.notes)]

    def __repr__(self) -> str:
        if not self.visible:
            return "<KernelReport: the profiler cannot see the GPU>"
        return f"<KernelReport: {plural(self.count, 'kernel')}, {self.total:.6g} s>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a kernel and a kind of copy (needs pandas). Seconds."""
        columns = ["name", "kind", "count", "total", "share", "shortest", "longest", "bytes"]
        rows = [
            {**dataclasses.asdict(kernel), "kind": "kernel", "share": kernel.total / self.total}
            for kernel in self.kernels
            if self.total
        ]
        rows += [{**dataclasses.asdict(copy), "kind": "copy"} for copy in self.copies]
        return data_frame(rows, columns)


def short(name: str) -> str:
    """Return a kernel's name without return type, parameters and torch's namespaces."""
    name = re.sub(r"^void ", "", name)
    name = re.sub(r"\(anonymous namespace\)::|\bat::native::|\bat::cuda::|\bc10::", "", name)
    if name.endswith(")"):  # the parameters begin at the parenthesis that matches the last one
        depth = 0
        for i in range(len(name) - 1, -1, -1):
            depth += (name[i] == ")") - (name[i] == "(")
            if depth == 0:
                name = name[:i] or name
                break
    return shortened(name, _LONGEST_NAME)


def _busy(report: KernelReport, ordinal: int, *, remark: bool) -> Line:
    share = report.busy_share(ordinal)
    text = f"cuda:{ordinal} busy {seconds(report.busy[ordinal])}"
    if share is None:
        return Line.of(text)
    said = "  (under the profiler, which slows the host)" if remark else ""
    parts = (Cell(f" of {seconds(report.window)}: "), Cell(percent(100 * share), "strong"))
    return Line((Cell(text), *parts, Cell(said, "dim")))


def _kernel_table(report: KernelReport) -> Grid:
    columns = (
        Column("Kernel", least=24),
        Column("Count", "right"),
        Column("Total", "right"),
        Column("Share", "right"),
        Column("Mean", "right", rank=1),
    )
    return Grid(columns, [_kernel(kernel, report.total) for kernel in report.kernels[:_SHOWN]])


def _kernel(kernel: Kernel, total: float) -> tuple[Cell, ...]:
    share = kernel.total / total if total else None
    return (
        Cell(short(kernel.name), whole=kernel.name),
        Cell(f"{kernel.count:,}"),
        Cell(seconds(kernel.total), "strong"),
        Cell(percent(None if share is None else 100 * share), bar=share),
        Cell(seconds(kernel.total / kernel.count), "dim"),
    )


def _rest(report: KernelReport) -> list[Line]:
    rest = report.kernels[_SHOWN:]
    if not rest:
        return []
    total = seconds(sum(kernel.total for kernel in rest))
    return [Line.of(f"and {plural(len(rest), 'more kernel')}, {total} together", "dim")]


def _copy_table(report: KernelReport) -> Grid:
    columns = (
        Column("Copy"),
        Column("Count", "right"),
        Column("Total", "right"),
        Column("Size", "right"),
        Column("Per second", "right", rank=1),
    )
    return Grid(columns, [_copy(copy) for copy in report.copies])


def _copy(copy: Copy) -> tuple[Cell, ...]:
    known = copy.bytes is not None and copy.total > 0
    rate = bytes_(round((copy.bytes or 0) / copy.total)) if known else DASH
    return (
        Cell(copy.name),
        Cell(f"{copy.count:,}"),
        Cell(seconds(copy.total), "strong"),
        Cell(bytes_(copy.bytes)),
        Cell(rate, "dim"),
    )


def _check(report: KernelReport) -> Line:
    """Return a line on whether there are as many kernels as launches."""
    kernels, graphs = plural(report.count, "kernel"), report.graph_launches
    of_graphs = ""
    if graphs:
        of_graphs = f", {plural(graphs, 'CUDA graph launch', 'CUDA graph launches')}"
    if report.launches is None:
        return Line.of(f"{kernels}; the launches were not recorded", "dim")
    if report.agrees:
        launches = plural(report.launches, "launch", "launches")
        agree = "as launched" if graphs else "as many as launched"
        return Line.of(f"{kernels}, {agree} ({launches}{of_graphs})", "dim")
    missing = []
    if report.lost_kernels:
        missing.append(f"{report.lost_kernels:,} of {report.launches:,} launches have no kernel")
    if report.lost_launches:
        missing.append(f"{report.lost_launches:,} of {kernels} have no launch")
    return Line.of(f"the profiler lost records: {', '.join(missing)}", "warn")
