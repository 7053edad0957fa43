"""The GPU time of a cell, by kernel and by kind of copy. Seconds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.render.blocks import Block, Cell, Column, Grid, Line, shortened
from gpumagic.render.units import percent, seconds
from gpumagic.results.base import Result, data_frame
from gpumagic.system.text import plural

if TYPE_CHECKING:
    import pandas

#: The most kernels that are shown, those of the longest total.
_SHOWN = 20
_LONGEST_NAME = 60
_NOT_VISIBLE = (
    "torch's profiler cannot see the GPU here, so there are no kernels to show (CUPTI was refused; "
    "in a container it often needs the host's permission: NVreg_RestrictProfilingToAdminUsers=0)"
)


@dataclass(frozen=True)
class Kernel:
    """All runs of one kernel, or all copies or fills of one kind. Seconds."""

    #: As the profiler writes it, with the full signature.
    name: str
    count: int
    total: float
    shortest: float
    longest: float
    #: The CUDA ordinals that it ran on.
    devices: tuple[int, ...] = ()


@dataclass(frozen=True)
class KernelReport(Result):
    """The kernels and copies of one run under torch's profiler. Seconds."""

    #: The longest total first.
    kernels: tuple[Kernel, ...] = ()
    #: From the start of the code until its GPU work was done, under the profiler.
    window: float | None = None
    #: By CUDA ordinal, how long at least one kernel or copy was running.
    busy: Mapping[int, float] = field(default_factory=dict)
    #: Whether the profiler could see the GPU. If not, the figures above mean nothing.
    visible: bool = True
    #: The file that the profiler's trace was written to.
    trace: str | None = None

    @property
    def total(self) -> float:
        """The sum of all times; more than ``busy`` where kernels overlap."""
        return sum(kernel.total for kernel in self.kernels)

    @property
    def count(self) -> int:
        """The number of kernels and copies that ran."""
        return sum(kernel.count for kernel in self.kernels)

    def busy_share(self, ordinal: int) -> float | None:
        """Return the part of the window in which the device was busy, 0 to 1."""
        if not self.window or ordinal not in self.busy:
            return None
        return min(self.busy[ordinal] / self.window, 1.0)

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = []
        if not self.visible:
            blocks.append(Line.of(_NOT_VISIBLE, "warn"))
        elif not self.kernels:
            blocks.append(Line.of("no kernel ran, and nothing was copied", "dim"))
        else:
            blocks += [*(_busy(self, ordinal) for ordinal in self.busy), _table(self)]
        if rest := self.kernels[_SHOWN:]:
            total = seconds(sum(kernel.total for kernel in rest))
            blocks.append(Line.of(f"and {plural(len(rest), 'more kernel')}, {total}", "dim"))
        if self.trace is not None:
            shown = f"trace written to {self.trace}; ui.perfetto.dev opens it"
            blocks.append(Line.of(shown, "dim"))
        return blocks

    def __repr__(self) -> str:
        if not self.visible:
            return "<KernelReport: the profiler cannot see the GPU>"
        return f"<KernelReport: {plural(self.count, 'kernel')}, {self.total:.6g} s>"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a kernel and a kind of copy (needs pandas). Seconds."""
        columns = [each.name for each in dataclasses.fields(Kernel)]
        return data_frame([dataclasses.asdict(kernel) for kernel in self.kernels], columns)


def short(name: str) -> str:
    """Return a kernel's name without return type, parameters and torch's namespaces."""
    name = re.sub(r"^void ", "", name)
    name = re.sub(r"\(anonymous namespace\)::|\bat::native::|\bat::cuda::|\bc10::", "", name)
    if name.endswith(")") and not name.startswith("Mem"):
        # The parameters begin at the parenthesis that matches the last one.
        depth = 0
        for i in range(len(name) - 1, -1, -1):
            depth += (name[i] == ")") - (name[i] == "(")
            if depth == 0:
                name = name[:i] or name
                break
    return shortened(name, _LONGEST_NAME)


def _busy(report: KernelReport, ordinal: int) -> Line:
    text = f"cuda:{ordinal} busy {seconds(report.busy[ordinal])}"
    share = report.busy_share(ordinal)
    if share is None:
        return Line.of(text)
    return Line(
        (
            Cell(f"{text} of {seconds(report.window)}: "),
            Cell(percent(100 * share), "strong"),
            Cell(" (under the profiler, which slows the host)", "dim"),
        )
    )


def _table(report: KernelReport) -> Grid:
    columns = (
        Column("Kernel or copy", least=24),
        Column("Count", "right"),
        Column("Total", "right"),
        Column("Share", "right"),
        Column("Mean", "right", rank=1),
    )
    rows = []
    for kernel in report.kernels[:_SHOWN]:
        share = kernel.total / report.total if report.total else None
        rows.append(
            (
                Cell(short(kernel.name), whole=kernel.name),
                Cell(f"{kernel.count:,}"),
                Cell(seconds(kernel.total), "strong"),
                Cell(percent(None if share is None else 100 * share), bar=share),
                Cell(seconds(kernel.total / kernel.count), "dim"),
            )
        )
    return Grid(columns, rows)
