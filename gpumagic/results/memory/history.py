"""The allocator's history, and the file that has it: ``%gpumem record``, ``%gpumem snapshot``."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.render.blocks import Block, Line
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result

_VIZ = "https://docs.pytorch.org/memory_viz"
_RECORDED = (
    "The allocator's history is recorded. '%gpumem cells' shows live memory by cell, "
    "'%gpumem snapshot FILE' writes it all, '%gpumem record off' ends it."
)
_NOT_RECORDED = "No history is recorded; '%gpumem record on' starts recording."


@dataclass(frozen=True, repr=False)
class HistoryState(Result):
    """Whether the allocator's history is recorded."""

    recording: bool
    #: The change that was made, in one line; empty if none was.
    message: str = ""

    def _blocks(self) -> list[Line]:
        after = _RECORDED if self.recording else "" if self.message else _NOT_RECORDED
        return [Line.of(text) for text in (self.message, after) if text]


@dataclass(frozen=True, repr=False)
class SnapshotFile(Result):
    """A snapshot of the allocator in a file that torch's memory_viz reads."""

    path: str
    #: The file's length in bytes.
    size: int
    #: Whether it has the recorded history.
    history: bool = False

    def _blocks(self) -> list[Block]:
        what = "with the history"
        if not self.history:
            what = "no history, only live memory; '%gpumem record on' begins one"
        return [
            Line.of(f"Written to {self.path} ({bytes_(self.size)}): {what}."),
            Line.of(f"To view it, drop the file on {_VIZ}; it stays on your machine.", "dim"),
        ]
