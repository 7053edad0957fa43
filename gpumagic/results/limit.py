"""The limit of torch's allocator."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.render.blocks import Block, Line, dim_lines
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result


@dataclass(frozen=True)
class LimitState(Result):
    """The limit of torch's allocator."""

    #: Bytes that the process may use of each device, CUDA context and libraries included; None
    #: for no limit.
    size: int | None = None
    #: What bounds torch's allocator beside it, and where more is held already.
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        if self.size is None:
            what = "by %gpumem" if self.notes else "torch may use the whole device"
            colon = " " if self.notes else ": "
            none = f"No limit{colon}{what}. '%gpumem limit 16GiB' sets one."
            return [Line.of(none), *dim_lines(self.notes)]
        return [
            Line.of(f"This process may use at most {bytes_(self.size)} of each GPU."),
            Line.of(
                "The CUDA context and libraries count; beyond it torch raises its out-of-memory "
                "error. '%gpumem limit off' lifts it.",
                "dim",
            ),
            *dim_lines(self.notes),
        ]

    def __repr__(self) -> str:
        return f"<LimitState: {'no limit' if self.size is None else bytes_(self.size)}>"
