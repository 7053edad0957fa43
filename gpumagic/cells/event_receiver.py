"""What receives the events of traced code, and what they come from."""

from __future__ import annotations

from types import FrameType
from typing import Protocol

from gpumagic.cells.pauses import Left


class Receiver(Protocol):
    """The receiver of events.

    Its methods raise nothing but `RecursionError`, after which it does nothing any more.
    """

    def enter(self, frame: FrameType) -> None:
        """Begin or resume a call of traced code."""
        ...

    def to_line(self, frame: FrameType, line: int) -> None:
        """Begin a line."""
        ...

    def leave(self, frame: FrameType, how: Left) -> None:
        """End a call, or pause it."""
        ...

    def may_skip(self, caller: FrameType) -> bool:
        """Return whether there is no event until what ``caller`` calls now has ended."""
        ...


class Events(Protocol):
    """A source of events; ``stop`` returns why some may be missing.

    An interrupt may end ``start`` or ``stop`` at any place: ``stop``, once more, ends the rest.
    """

    #: Calls of other code for which tracing was switched off and on again, and those for which it
    #: was not, although it slows them down.
    skipped: int
    slowed: int

    def start(self) -> None: ...

    def stop(self) -> str | None: ...
