"""The memory that ``%gpumem free`` has freed, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result

#: Characters of a step that are shown: it may name many variables.
_LONGEST = 48


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
    #: By CUDA ordinal, as ``after``.
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
