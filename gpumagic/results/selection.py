"""The outcome of selecting devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpumagic.render.blocks import Block, Callout, Column, Fold, Grid, Line, Style, Styled
from gpumagic.render.units import bytes_, spans
from gpumagic.results.base import Result
from gpumagic.results.devices import NO_GPU, Device, variables
from gpumagic.wording import plural

#: The most notes that are shown, not folded.
_NOTES = 5

Status = Literal["applied", "too-late", "gated", "restarted", "unchanged"]


def status_cell(status: Status) -> Styled:
    """Return a status in its colour."""
    styles: dict[Status, Style] = {"gated": "warn", "too-late": "bad"}
    return Styled(status, styles.get(status, "good"))


@dataclass(frozen=True)
class WayOut:
    """A command that helps where a choice is too late."""

    command: str
    #: Its effect, and its cost.
    effect: str


@dataclass(frozen=True, repr=False)
class Selection(Result):
    """The outcome of selecting devices, as verified."""

    #: The spec as the user typed it.
    requested: str
    #: The variables of this process after the selection; None for one that is not set.
    environment: Mapping[str, str | None]
    status: Status
    #: The devices that this process sees after the selection, in CUDA's order. Where it is too late
    #: these are the visible ones, not the requested ones.
    devices: tuple[Device, ...] = ()
    #: False where these are not known before CUDA is initialised; `devices` is empty then.
    devices_known: bool = True
    #: Why this machine has no GPU that CUDA can use, as a clause; None where it may have one.
    no_gpu: str | None = None
    #: Whether the CUDA driver is initialised in this process; None where not known.
    cuda_initialized: bool | None = None
    #: Further remarks, a line each.
    notes: tuple[str, ...] = ()
    #: The names of the variables that a restart has lost, and of the variables that came back. And
    #: by words that say how, the variables that came back changed, and what else is not as it was.
    lost: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: If it is too late: the problem in one short line; where CUDA was initialised, if known; and
    #: the commands that help.
    problem: str | None = None
    where: str | None = None
    ways_out: tuple[WayOut, ...] = ()

    def _blocks(self) -> Iterator[Block]:
        still = "still " if self.status == "too-late" else ""
        seen = plural(len(self.devices), "GPU") if self.devices else "no GPU"
        sees = f"this process {still}sees {seen}"
        if not self.devices_known:
            sees = "what this process sees is not known before CUDA starts"
        masked = variables(self.environment)
        if self.no_gpu is not None:
            none = f": {NO_GPU[0].lower()}{NO_GPU[1:]}"
            yield Line.join(status_cell(self.status), none, Styled(f" ({self.no_gpu})", "dim"))
        elif self.problem is not None:
            yield Callout([*self._too_late()])
            yield Line.of(f"{sees[0].upper()}{sees[1:]}")
            yield Line.join("New child processes: ", Styled.uuids(masked))
        else:
            # A gate does not go by the variables.
            how = "" if self.status == "gated" else f"  ({masked})"
            yield Line.join(status_cell(self.status), f": {sees}", Styled.uuids(how))
            if self.status == "restarted" and len(self.devices) > 1:
                which = spans(device.index for device in self.devices)
                last = self.devices[-1].cuda
                yield Line.of(f"  {self.devices[0].cuda} to {last} are GPU {which}")
            else:
                yield from map(_visible, self.devices)
        if self.lost:
            lost = Styled(f"Lost: {plural(len(self.lost), 'variable')} (", "dim")
            yield Line.join(lost, Styled.few(self.lost, style="dim"), Styled(").", "dim"))

    def _remarks(self) -> Iterator[Block]:
        """Yield the notes: a restart may have many, of which the later ones are folded."""
        shown = _NOTES if len(self.notes) > _NOTES + 1 else _NOTES + 1  # "1 more" is a line, too
        yield from Line.notes(self.notes[:shown])
        if rest := self.notes[shown:]:
            more = f"{plural(len(rest), 'more remark')}: .notes of the result, which -o returns"
            yield Fold(Line.of(more, "dim"), Line.notes(rest))

    def _too_late(self) -> Iterator[Block]:
        """Yield why it is too late, and the commands that help."""
        yield Line.join(Styled("✗ ", "bad"), Styled(str(self.problem), "strong"))
        if self.where is not None:
            # What is between the first and the last backtick is code.
            before, _, rest = f"{self.where}.".partition("`")
            code, _, after = rest.rpartition("`")
            yield Line.join(before, *([Styled(code, "command")] if code else []), after)
        if self.ways_out:
            yield Line.of("To change that:")
            yield Grid.of(
                self.ways_out,
                Column("", lambda way: Styled(way.command, "command")),
                Column("", lambda way: way.effect, least=12, wrap=True),
            )


def _visible(device: Device) -> Line:
    known = device.memory_free is not None or device.instance is not None
    free = f", {bytes_(device.memory_free)} free" if known else ""
    text = f" is GPU {device.index}, {device.name or 'name not known'}{free}"
    return Line.join(Styled(f"  {device.cuda}", "strong"), text)
