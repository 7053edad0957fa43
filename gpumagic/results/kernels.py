"""The GPU time of a cell, by kernel and by kind of copy. Seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpumagic.render.blocks import Block, Cell, Column, Figures, Grid, Line, shortened
from gpumagic.render.units import percent, seconds
from gpumagic.results.base import Result, plain
from gpumagic.system.text import plural

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
    #: The CUDA ordinals that it ran on.
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, repr=False)
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

    def _records(self) -> Iterable[Mapping[str, Any]]:
        return map(plain, self.kernels)

    def _blocks(self) -> list[Block]:
        return [*self._described()]

    def _described(self) -> Iterator[Block]:
        if not self.visible:
            yield Line.of(_NOT_VISIBLE, "warn")
        elif not self.kernels:
            yield Line.of("no kernel ran, and nothing was copied", "dim")
        else:
            yield from map(self._busy, self.busy)
            yield self._table()
        if rest := self.kernels[_SHOWN:]:
            total = seconds(sum(kernel.total for kernel in rest))
            yield Line.of(f"and {plural(len(rest), 'more kernel')}, {total}", "dim")
        if self.trace is not None:
            yield Line.of(f"trace written to {self.trace}; ui.perfetto.dev opens it", "dim")

    def _busy(self, ordinal: int) -> Line:
        text = f"cuda:{ordinal} busy {seconds(self.busy[ordinal])}"
        if not self.window:
            return Line.of(text)
        share = percent(100 * min(self.busy[ordinal] / self.window, 1.0))
        why = Cell(" (under the profiler, which slows the host)", "dim")
        return Line.join(f"{text} of {seconds(self.window)}: ", Cell(share, "strong"), why)

    def _table(self) -> Grid:
        total = self.total or 1.0
        columns: list[Column[Kernel]] = [
            Column("Kernel or copy", lambda k: Cell(short(k.name), whole=k.name), least=24),
            Figures("Count", lambda k: f"{k.count:,}"),
            Figures("Total", lambda k: Cell(seconds(k.total), "strong")),
            Figures("Share", lambda k: Cell(percent(100 * k.total / total), bar=k.total / total)),
            Figures("Mean", lambda k: Cell(seconds(k.total / k.count), "dim"), rank=1),
        ]
        return Grid.of(self.kernels[:_SHOWN], columns)


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
