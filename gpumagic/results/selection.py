"""The outcome of selecting devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpumagic.render.blocks import (
    Block,
    Callout,
    Cell,
    Column,
    Grid,
    Line,
    Style,
    dim_lines,
    names_line,
    short_uuids,
)
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result
from gpumagic.results.devices import Device, variables
from gpumagic.system.text import plural

Status = Literal["applied", "too-late", "gated", "restarted", "unchanged"]

STATUS_STYLES: Mapping[str, Style] = {
    "applied": "good",
    "unchanged": "good",
    "restarted": "good",
    "gated": "warn",
    "too-late": "bad",
}


@dataclass(frozen=True)
class WayOut:
    """A command that helps where a choice is too late."""

    command: str
    #: Its effect, and its cost.
    effect: str


@dataclass(frozen=True)
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
    #: Whether the CUDA driver is initialised in this process; None where not known.
    cuda_initialized: bool | None = None
    #: Further remarks, a line each.
    notes: tuple[str, ...] = ()
    #: The names of the variables that a restart has lost.
    lost: tuple[str, ...] = ()
    #: If it is too late: the problem in one short line; where CUDA was initialised, if known; and
    #: the commands that help.
    problem: str | None = None
    where: str | None = None
    ways_out: tuple[WayOut, ...] = ()

    def _blocks(self) -> list[Block]:
        count = len(self.devices)
        still = "still " * (self.status == "too-late")
        seen = "no GPU" if count == 0 else "1 GPU" if count == 1 else f"{count} GPUs"
        sees = f"this kernel {still}sees {seen}"
        if not self.devices_known:
            sees = "what this kernel sees is not known before CUDA starts"
        status = Cell(self.status, STATUS_STYLES[self.status])
        whole = f"  ({variables(self.environment)})"
        masked = Cell(short_uuids(whole), "dim", whole=whole.strip())
        # A gate does not go by the variables.
        how = [masked] if self.status != "gated" else []
        blocks: list[Block] = [Line((status, Cell(f": {sees}"), *how))]
        if self.problem is not None:
            # The callout says it once; a note has the variables, for whom they are in effect.
            blocks = [_callout(self), Line.of(f"{sees[0].upper()}{sees[1:]}")]
        else:
            blocks += map(_visible, self.devices)
        if self.lost:
            number = plural(len(self.lost), "variable")
            blocks.append(names_line(f"Lost: {number} (", self.lost, ")."))
        return [*blocks, *dim_lines(self.notes)]

    def __repr__(self) -> str:
        return f"<Selection {self.requested!r}: {self.status}, {len(self.devices)} visible>"


def too_full_text(min_free: int | None, devices: Sequence[Device]) -> str:
    """Return that no device has ``min_free`` bytes free, and how much the freest has."""
    freest = max(devices, key=lambda device: device.memory_free or 0)
    name = freest.instance or f"GPU {freest.index}"
    most = f"the most is {bytes_(freest.memory_free)} on {name}"
    return f"no GPU has {bytes_(min_free)} free; {most}"


def _callout(result: Selection) -> Callout:
    """Return why it is too late, and the commands that help."""
    lines: list[Line | Grid] = [
        Line((Cell("✗ ", "bad"), Cell(str(result.problem), "strong"))),
    ]
    if result.where is not None:
        lines.append(_with_code(f"{result.where}."))
    if result.ways_out:
        lines.append(Line.of("To change that:"))
        rows = [(Cell(f"{way.command}", "command"), Cell(way.effect)) for way in result.ways_out]
        lines.append(
            Grid((Column("Command"), Column("Effect", least=30, wrap=True)), rows, header=False)
        )
    return Callout(lines)


def _with_code(text: str) -> Line:
    """Return a line in which what is between the first and the last backtick is code."""
    before, _, rest = text.partition("`")
    code, _, after = rest.rpartition("`")
    return Line((Cell(before), Cell(code, "command"), Cell(after))) if code else Line.of(text)


def _visible(device: Device) -> Line:
    ordinal = "cuda:?" if device.ordinal is None else f"cuda:{device.ordinal}"
    known = device.memory_free is not None or device.instance is not None
    free = f", {bytes_(device.memory_free)} free" if known else ""
    return Line(
        (
            Cell(f"  {ordinal}", "strong"),
            Cell(f" is GPU {device.index}, {device.name or 'name not known'}{free}"),
        )
    )
