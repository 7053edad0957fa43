"""The message that an error has destroyed this process's CUDA context."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.render.blocks import Block, Line, names_line
from gpumagic.results.base import Result
from gpumagic.system.text import plural


@dataclass(frozen=True)
class DeadContext(Result):
    """The message that an error has destroyed the CUDA context, and the variables lost with it."""

    #: What happened, as a clause.
    cause: str
    #: The command that restarts the kernel, and keeps the variables that can be kept.
    remedy: str
    #: The names of the variables with CUDA tensors; None where not known.
    lost: tuple[str, ...] | None = None
    #: False where not all of the notebook's objects were searched.
    complete: bool = True

    def _blocks(self) -> list[Block]:
        over = f"gpumagic: CUDA has failed in this process: {self.cause}. {self.remedy}."
        if not self.lost:
            return [Line.of(over, "dim")]
        count = plural(len(self.lost), "variable")
        end = ")." if self.complete else "), and perhaps others."
        return [names_line(f"{over} Lost with it: {count} on the GPU (", self.lost, end)]

    def __repr__(self) -> str:
        return f"<DeadContext: {self.cause}>"
