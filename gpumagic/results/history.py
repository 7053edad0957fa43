"""The allocator's history: whether it is recorded, and a snapshot of it in a file."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.render.blocks import Block, Line
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result
from gpumagic.system.text import plural

_VIZ = "https://docs.pytorch.org/memory_viz"


@dataclass(frozen=True)
class HistoryState(Result):
    """Whether the allocator's history is recorded."""

    recording: bool
    #: Whether gpumagic started it, and not other code.
    own: bool = False
    #: The number of newest events that are recorded on each device; None where not known.
    max_entries: int | None = None
    #: The change that was made, in one line; empty if none was.
    message: str = ""
    #: Whether recording will begin when CUDA is first used.
    armed: bool = False

    def _blocks(self) -> list[Block]:
        blocks: list[Block] = [Line.of(self.message)] if self.message else []
        if self.armed:
            newest = f"The newest {self.max_entries:,} events will be recorded on each device; "
            blocks = blocks or [Line.of("Recording begins when CUDA is first used.")]
            return [*blocks, Line.of(f"{newest}'%gpumem record off' cancels that.", "dim")]
        if not self.recording:
            hint = "No history is recorded; '%gpumem record on' starts recording."
            return blocks or [Line.of(hint)]
        limit = (
            "within limits that other code set"
            if self.max_entries is None
            else f"the newest {self.max_entries:,} events on each device"
        )
        return [
            *blocks,
            Line.of(
                f"The allocator's history is recorded, {limit}. '%gpumem cells' shows live memory "
                "by cell, '%gpumem snapshot FILE' writes it all, '%gpumem record off' ends it.",
                "dim",
            ),
        ]

    def __repr__(self) -> str:
        state = "recording" if self.recording else "armed" if self.armed else "off"
        return f"<HistoryState: {state}>"


@dataclass(frozen=True)
class SnapshotFile(Result):
    """A snapshot of the allocator in a file that torch's memory_viz reads."""

    path: str
    #: The file's length in bytes.
    size: int
    #: The number of events in it, on all devices; 0 where no history was recorded.
    events: int = 0

    def _blocks(self) -> list[Block]:
        events = plural(self.events, "event") if self.events else "no history, only live memory"
        blocks: list[Block] = [
            Line.of(f"Written to {self.path} ({bytes_(self.size)}): {events}."),
            Line.of(f"To view it, drop the file on {_VIZ}; it stays on your machine.", "dim"),
        ]
        if not self.events:
            blocks.append(Line.of("For a timeline with stacks, '%gpumem record on' first.", "dim"))
        return blocks

    def __repr__(self) -> str:
        return f"<SnapshotFile {self.path!r}: {plural(self.events, 'event')}>"
