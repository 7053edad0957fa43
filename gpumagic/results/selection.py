"""The outcome of selecting devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Literal

from gpumagic.render.blocks import Block, Callout, Column, Grid, Line, Style, Styled
from gpumagic.render.units import bytes_, spans
from gpumagic.results.base import Result
from gpumagic.results.devices import NO_GPU, Device, variables
from gpumagic.wording import plural

#: The lines of a restart's report, on a screen of so many columns.
_LINES, _WIDTH = 8, 80

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
    #: The names of the variables that a restart has lost, and of those that came back; and those
    #: that came back changed, and what else is not as it was, by words that say how.
    lost: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: If it is too late: the problem in one short line; where CUDA was initialised, if known; and
    #: the commands that help.
    problem: str | None = None
    where: str | None = None
    ways_out: tuple[WayOut, ...] = ()

    def _blocks(self) -> list[Block]:
        still = "still " if self.status == "too-late" else ""
        seen = plural(len(self.devices), "GPU") if self.devices else "no GPU"
        sees = f"this process {still}sees {seen}"
        if not self.devices_known:
            sees = "what this process sees is not known before CUDA starts"
        masked = variables(self.environment)
        if self.no_gpu is not None:
            none = f": {NO_GPU[0].lower()}{NO_GPU[1:]}"
            why = Styled(f" ({self.no_gpu})", "dim")
            blocks: list[Block] = [Line.join(status_cell(self.status), none, why)]
        elif self.problem is not None:
            blocks = [
                Callout([*self._too_late()]),
                Line.of(f"{sees[0].upper()}{sees[1:]}"),
                Line.join("New child processes: ", Styled.uuids(masked)),
            ]
        else:
            # A gate does not go by the variables.
            how = [Styled.uuids(f"  ({masked})")] if self.status != "gated" else []
            line = Line.join(status_cell(self.status), f": {sees}", *how)
            blocks = [line, *map(_visible, self.devices)]
        if self.status == "restarted":
            return [*blocks[:1], *self._restarted()]
        return [*blocks, *Line.notes(self.notes)]

    def _restarted(self) -> Iterator[Block]:
        """Yield what there is to see after a restart: with the line before, eight lines at most."""
        left = _LINES - 1
        if len(self.devices) > 1:
            which = spans(device.index for device in self.devices)
            yield Line.of(f"  {self.devices[0].cuda} to {self.devices[-1].cuda} are GPU {which}")
        else:
            yield from map(_visible, self.devices)
        left -= bool(self.devices)
        if self.lost:
            lost = Styled(f"Lost: {plural(len(self.lost), 'variable')} (", "dim")
            yield Line.join(lost, Styled.few(self.lost, style="dim"), Styled(").", "dim"))
            left -= 1
        for number, note in enumerate(self.notes, 1):
            left -= len(wrap(note, _WIDTH, subsequent_indent="  "))
            if left < (number < len(self.notes)):
                more = plural(len(self.notes) - number + 1, "more remark")
                yield Line.of(f"{more}: .notes of the result, which -o returns", "dim")
                return
            yield Line.of(note, "dim")

    def _too_late(self) -> Iterator[Block]:
        """Yield why it is too late, and the commands that help."""
        yield Line.join(Styled("✗ ", "bad"), Styled(str(self.problem), "strong"))
        if self.where is not None:
            # What is between the first and the last backtick is code.
            before, _, rest = f"{self.where}.".partition("`")
            code, _, after = rest.rpartition("`")
            yield Line.join(before, Styled(code, "command"), after)
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
