"""``torch.distributed``'s process group over the engines of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumagic.render.blocks import Block, Cell, Line, dim_lines
from gpumagic.results.base import Result
from gpumagic.results.cluster_engines import failure_lines
from gpumagic.system.text import plural


@dataclass(frozen=True)
class ProcessGroup(Result):
    """``torch.distributed``'s group over the engines; empty where there is none."""

    #: The ranks by engine id.
    ranks: Mapping[int, int] = field(default_factory=dict)
    backend: str | None = None
    #: ``address:port`` of the rendezvous; None on one host, where it was a private file.
    master: str | None = None
    #: By engine id, why the engine is not in the group.
    failed: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = []
        if self.ranks:
            count = plural(self.world_size, "rank")
            in_order = sorted(self.ranks, key=self.ranks.__getitem__)
            same = all(engine == rank for engine, rank in self.ranks.items())
            who = "rank = engine id" if same else f"ranks 0 to {len(in_order) - 1} are {in_order}"
            master = f"; rendezvous at {self.master}" if self.master else ""
            group = Cell(f"process group: {count}", "good")
            backend = Cell(f", backend {self.backend}")
            blocks.append(Line((group, backend, Cell(f"  ({who}{master})", "dim"))))
        elif not self.failed and not self.notes:
            blocks.append(
                Line.of("no process group; %gpu dist init creates one of the engines", "dim")
            )
        return [*blocks, *failure_lines(self.failed), *dim_lines(self.notes)]

    def __repr__(self) -> str:
        backend = self.backend or "not initialised"
        return f"<ProcessGroup: {plural(self.world_size, 'rank')}, {backend}>"
