"""How torch's allocator is set: its history (``%gpumem record``, ``snapshot``), its limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpumagic.render.blocks import Block, Line
from gpumagic.render.units import bytes_, share, spans
from gpumagic.results.base import Result
from gpumagic.wording import grouped

_VIZ = "https://docs.pytorch.org/memory_viz"
_RECORDED = (
    "The allocator's history is recorded. '%gpumem cells' shows live memory by cell, "
    "'%gpumem snapshot FILE' writes it all, '%gpumem record off' ends it."
)
_NOT_RECORDED = "No history is recorded; '%gpumem record on' starts recording."
_NO_LIMIT = "No limit: torch may use the whole device. '%gpumem limit 16GiB' sets one."
_BEYOND = (
    "The CUDA context and libraries come on top (300 to 500 MiB). Beyond the limit torch raises "
    "its out-of-memory error."
)
_LIFTED = "'%gpumem limit off' lifts it."


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


@dataclass(frozen=True, repr=False)
class LimitState(Result):
    """The limit of torch's allocator."""

    #: Bytes that torch may reserve of each device, or, as a float, a part of each; None for no
    #: limit by ``%gpumem limit``.
    size: int | float | None = None
    #: By CUDA ordinal, the bytes in force. A device that is not in use is missing, unless the
    #: user's own fraction limits it.
    devices: Mapping[int, int] = field(default_factory=dict)
    #: Of these, the devices that torch's own fraction limits, which the user's code has set.
    by_fraction: tuple[int, ...] = ()
    #: Where more is reserved already, or the device has no more.
    notes: tuple[str, ...] = ()

    @property
    def limits(self) -> str | None:
        """The limits: ``1.00 GiB of each GPU``, ``39.8 GiB of cuda:0``; None where none is."""
        if self.size is not None and not self.by_fraction:
            of_each = share(self.size) if isinstance(self.size, float) else bytes_(self.size)
            return f"{of_each} of each GPU"
        sizes = grouped((size, i) for i, size in self.devices.items())
        return ", ".join(f"{bytes_(size)} of cuda:{spans(of)}" for size, of in sizes.items())

    def _blocks(self) -> Iterator[Line]:
        if self.limits:
            yield Line.of(f"torch may use at most {self.limits}.")
            yield Line.of(f"{_BEYOND} {_LIFTED}" if self.size is not None else _BEYOND, "dim")
        elif not self.notes:
            yield Line.of(_NO_LIMIT)
        if self.by_fraction:
            theirs = f"cuda:{spans(self.by_fraction)}"
            why = f"{theirs}: by torch's memory fraction, which '%gpumem limit' leaves."
            yield Line.of(why, "dim")
