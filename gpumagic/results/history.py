"""The allocator's history: whether it is recorded, and a snapshot of it in a file."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.results.base import Result


@dataclass(frozen=True)
class HistoryState(Result):
    """Whether the allocator's history is recorded."""

    recording: bool
    #: Whether gpumagic began it; otherwise somebody else did.
    own: bool = False
    #: So many of the newest events are kept on each device; None where not known.
    max_entries: int | None = None
    #: What has just changed, in a line; empty if nothing has.
    message: str = ""
    #: Nothing is recorded yet: that begins when CUDA is first used.
    armed: bool = False

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

    def __repr__(self) -> str:
        return f"<SnapshotFile {self.path!r}: {self.events} events>"
