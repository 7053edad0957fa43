"""The results of ``%gpumem record``, ``snapshot``, ``limit``, ``--fit`` and ``free``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
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
#: Characters of a step that are shown: it may name many variables.
_LONGEST = 48


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


@dataclass(frozen=True)
class FitRun:
    """One run of the cell."""

    value: int
    #: Bytes above the start; None if memory ran out.
    peak: int | None

    @property
    def fits(self) -> bool:
        """Whether the cell ran to its end."""
        return self.peak is not None


@dataclass(frozen=True, repr=False)
class Fit(Result):
    """The result of ``%%gpumem --fit NAME=LOW:HIGH``."""

    #: The variable.
    name: str
    #: The largest value with which the cell ran; None where it did not run with any.
    largest: int | None
    #: In the order in which they ran.
    runs: tuple[FitRun, ...]
    #: Whether the next larger value is known not to fit, or is above ``HIGH``.
    exact: bool
    notes: tuple[str, ...] = ()

    def _records(self) -> Iterable[Mapping[str, Any]]:
        return ({"value": run.value, "peak": run.peak, "fits": run.fits} for run in self.runs)

    def _blocks(self) -> Iterator[Block]:
        failed = Styled("✗ out of memory", "bad")
        yield Line.of(self.verdict)
        yield Grid.of(
            sorted(self.runs, key=lambda run: run.value),
            Figures(self.name, lambda run: f"{run.value:,}"),
            Figures("Peak above start", lambda run: bytes_(run.peak) if run.fits else failed),
        )

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        if self.largest is None:
            return f"{self.name} = {self.runs[0].value:,} does not fit: memory ran out."
        value = f"{self.name} = {self.largest:,}"
        peaks = {run.peak for run in self.runs}
        if len(peaks) == 1 < len(self.runs):
            same = bytes_(self.runs[0].peak)
            return f"The cell does not depend on {self.name}: its peak is {same} with every value."
        failed = min((run.value for run in self.runs if not run.fits), default=None)
        if self.exact:
            end = "fits: the end of the range" if failed is None else "is the largest that fits"
            return f"{value} {end}."
        if failed is not None:
            return f"{value} fits, {failed:,} does not. The values between them were not tried."
        return f"{value} is the largest value that ran; a larger one may fit."


@dataclass(frozen=True)
class Held:
    """The memory of torch's allocator on one device. Bytes."""

    #: Held by live tensors.
    allocated: int
    #: Live tensors and cache.
    reserved: int


@dataclass(frozen=True)
class FreeStep:
    """One step of ``%gpumem free``, and what was held after it, by CUDA ordinal."""

    what: str
    after: Mapping[int, Held]


@dataclass(frozen=True, repr=False)
class Freed(Result):
    """The memory that ``%gpumem free`` has freed."""

    steps: tuple[FreeStep, ...] = ()
    #: By CUDA ordinal; ``after`` likewise.
    before: Mapping[int, Held] = field(default_factory=dict)
    #: The variables that were deleted.
    deleted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    #: Why it is not known what was freed.
    unknown: str | None = None

    @property
    def after(self) -> Mapping[int, Held]:
        """What was held after the last step."""
        return self.steps[-1].after if self.steps else self.before

    def _blocks(self) -> Iterator[Block]:
        blocks = [block for i in self.before for block in self._of_device(i)]
        what = "No GPU memory was freed."
        if self.unknown is not None:
            what = f"Not measured, {self.unknown}"
        if self.deleted:
            what = f"Deleted {', '.join(self.deleted)}: {what[0].lower()}{what[1:]}"
        yield from blocks or [Line.of(what)]

    def _of_device(self, ordinal: int) -> Iterator[Block]:
        """Yield the steps and the change, if any: ``allocated 30.0 GiB → 2.00 GiB, …``."""
        before, after = self.before[ordinal], self.after.get(ordinal, self.before[ordinal])
        if before == after:
            return
        states = [before, *(step.after.get(ordinal, before) for step in self.steps)]
        yield Grid.of(
            zip(self.steps, states, states[1:], strict=False),
            Column(f"cuda:{ordinal} freed", lambda of: Styled.cut(of[0].what, _LONGEST)),
            Figures("Allocated", lambda of: bytes_(of[1].allocated - of[2].allocated)),
            Figures("Reserved", lambda of: bytes_(of[1].reserved - of[2].reserved)),
        )
        allocated = f"allocated {bytes_(before.allocated)} → {bytes_(after.allocated)}"
        reserved = f"reserved {bytes_(before.reserved)} → {bytes_(after.reserved)}"
        yield Line.of(f"{allocated}, {reserved}", "good")
