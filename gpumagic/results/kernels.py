"""The kernels of a cell. All times are in seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled, shortened
from gpumagic.render.units import percent, seconds
from gpumagic.results.base import Result
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
class KernelReport(Result):
    """The kernels and copies of one run under torch's profiler. Seconds."""

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

    def _records(self) -> Iterable[Mapping[str, Any]]:
        return map(asdict, self.kernels)

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = []
        if not self.visible:
            blocks.append(Line.of(_NOT_VISIBLE, "warn"))
        elif not self.kernels:
            blocks.append(Line.of("no GPU kernel ran, and nothing was copied", "dim"))
        else:
            blocks.append(self._table())
        if rest := self.kernels[_SHOWN:]:
            total = seconds(sum(kernel.total for kernel in rest))
            blocks.append(Line.of(f"and {plural(len(rest), 'more kernel')}, {total}", "dim"))
        if self.trace is not None:
            note = f"trace written to {self.trace}; ui.perfetto.dev opens it"
            blocks.append(Line.of(note, "dim"))
        return blocks

    def _table(self) -> Grid:
        total = self.total or 1.0
        return Grid.of(
            self.kernels[:_SHOWN],
            Column("Kernel or copy", lambda k: Styled(short(k.name), whole=k.name), least=24),
            Figures("Count", lambda k: f"{k.count:,}"),
            Figures("Total", lambda k: Styled(seconds(k.total), "strong")),
            Figures("Share", lambda k: Styled(percent(100 * k.total / total), bar=k.total / total)),
            Figures("Mean", lambda k: Styled(seconds(k.total / k.count), "dim"), rank=1),
        )


def short(name: str) -> str:
    """Return a kernel's name without return type, parameters and torch's namespaces."""
    name = re.sub(r"^void ", "", name)
    name = re.sub(r"\(anonymous namespace\)::|\bat::native::|\bat::cuda::|\bc10::", "", name)
    if not name.startswith("Mem"):
        # From the parenthesis that matches the last one on; parameters may be functions.
        name = re.sub(r"(?<=.)\((?:[^()]|\([^()]*\))*\)$", "", name)
    return shortened(name, _LONGEST_NAME)
