"""What torch's allocator was asked to do: its history recorded or written, its size bounded."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.render.blocks import Block, Line, dim_lines
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result

_VIZ = "https://docs.pytorch.org/memory_viz"


@dataclass(frozen=True)
class HistoryState(Result):
    """Whether the allocator's history is recorded."""

    recording: bool
    #: Whether gpumagic started it, and not other code.
    own: bool = False
    #: The change that was made, in one line; empty if none was.
    message: str = ""

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = [Line.of(self.message)] if self.message else []
        if not self.recording:
            hint = "No history is recorded; '%gpumem record on' starts recording."
            return blocks or [Line.of(hint)]
        text = (
            "The allocator's history is recorded. '%gpumem cells' shows live memory by cell, "
            "'%gpumem snapshot FILE' writes it all, '%gpumem record off' ends it."
        )
        return [*blocks, Line.of(text, "dim")]

    def __repr__(self) -> str:
        return f"<HistoryState: {'recording' if self.recording else 'off'}>"


@dataclass(frozen=True)
class SnapshotFile(Result):
    """A snapshot of the allocator in a file that torch's memory_viz reads."""

    path: str
    #: The file's length in bytes.
    size: int
    #: Whether it has the recorded history.
    history: bool = False

    def _blocks(self) -> list[Block]:
        what = "with the history" if self.history else "no history, only live memory"
        blocks: list[Block] = [
            Line.of(f"Written to {self.path} ({bytes_(self.size)}): {what}."),
            Line.of(f"To view it, drop the file on {_VIZ}; it stays on your machine.", "dim"),
        ]
        if not self.history:
            blocks.append(Line.of("For a timeline with stacks, '%gpumem record on' first.", "dim"))
        return blocks

    def __repr__(self) -> str:
        return f"<SnapshotFile {self.path!r}>"


@dataclass(frozen=True)
class LimitState(Result):
    """The limit of torch's allocator."""

    #: Bytes that torch may reserve of each device; None for no limit.
    size: int | None = None
    #: Where more is reserved already.
    notes: tuple[str, ...] = ()

    def _blocks(self) -> list[Block]:
        if self.size is None:
            text = "No limit: torch may use the whole device. '%gpumem limit 16GiB' sets one."
            return [Line.of(text)]
        return [
            Line.of(f"torch may use at most {bytes_(self.size)} of each GPU."),
            Line.of(
                "The CUDA context and libraries come on top (300 to 500 MiB). Beyond the limit "
                "torch raises its out-of-memory error. '%gpumem limit off' lifts it.",
                "dim",
            ),
            *dim_lines(self.notes),
        ]

    def __repr__(self) -> str:
        return f"<LimitState: {'no limit' if self.size is None else bytes_(self.size)}>"
