"""The GPU kernels and copies of one run, by torch's profiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
from gpumagic.render.units import seconds, share
from gpumagic.results.base import Series
from gpumagic.system.text import shortened
from gpumagic.wording import plural

#: The most kernels that are shown, those of the longest total.
_SHOWN = 20
#: The most characters of a name that are shown.
_LONGEST_NAME = 60
_NOT_VISIBLE = (
    "torch's profiler cannot see the GPU here, so there are no GPU kernels to show (CUPTI was "
    "refused; in a container it often needs the host's permission: "
    "NVreg_RestrictProfilingToAdminUsers=0)"
)


@dataclass(frozen=True)
class Kernel:
    """All runs of one kernel, or all copies or fills of one kind. Seconds."""

    #: As the profiler writes it, with the full signature.
    name: str
    count: int
    total: float


@dataclass(frozen=True, repr=False)
class KernelReport(Series[Kernel]):
    """The kernels and copies of one run under torch's profiler. Seconds."""

    _sequence = "kernels"

    #: The longest total first.
    kernels: tuple[Kernel, ...] = ()
    #: Whether the profiler could see the GPU. If not, the figures above mean nothing.
    visible: bool = True
    #: The file that the profiler's trace was written to.
    trace: str | None = None

    @property
    def total(self) -> float:
        """The sum of all times, also of kernels that ran side by side."""
        return sum(kernel.total for kernel in self.kernels)

    def _blocks(self) -> Iterator[Block]:
        total = self.total or 1.0
        if not self.visible:
            yield Line.of(_NOT_VISIBLE, "warn")
        elif not self.kernels:
            yield Line.of("no GPU kernel ran, and nothing was copied", "dim")
        yield Grid.of(
            self.kernels[:_SHOWN],
            Column("Kernel or copy", lambda k: Styled(short(k.name), whole=k.name), least=24),
            Figures("Count", lambda k: f"{k.count:,}"),
            Figures("Total", lambda k: Styled(seconds(k.total), "strong")),
            Figures("Share", lambda k: Styled(share(k.total / total), bar=k.total / total)),
            Figures("Mean", lambda k: Styled(seconds(k.total / k.count), "dim"), rank=1),
        )
        if rest := self.kernels[_SHOWN:]:
            more = seconds(sum(kernel.total for kernel in rest))
            yield Line.of(f"and {plural(len(rest), 'more kernel')}, {more}", "dim")
        if self.trace is not None:
            yield Line.of(f"trace written to {self.trace}; ui.perfetto.dev opens it", "dim")


def short(name: str) -> str:
    """Return a kernel's name without return type, parameters and torch's namespaces."""
    name = re.sub(r"^void ", "", name)
    name = re.sub(r"\(anonymous namespace\)::|\bat::native::|\bat::cuda::|\bc10::", "", name)
    if not name.startswith("Mem"):
        # From the parenthesis that matches the last one on; parameters may be functions.
        name = re.sub(r"(?<=.)\((?:[^()]|\([^()]*\))*\)$", "", name)
    return shortened(name, _LONGEST_NAME)
