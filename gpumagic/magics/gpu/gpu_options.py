"""What can be typed behind ``%gpu``: choices of GPUs, their options, the verbs, and their help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from gpumagic.magics.argument_types import count, duration, duration_or_zero, size
from gpumagic.magics.option_forms import (
    ClusterOptions,
    Form,
    Options,
    PlotOptions,
    TargetOptions,
    argument,
    section,
)
from gpumagic.magics.parsing import Grammar

_choice = section("a choice of GPUs")
_auto = section("auto [N]: the N GPUs with the most free memory that nobody claims")
_NO_CLAIM = ("--no-claim", "do not claim it, ignore the claims of others")


@dataclass(frozen=True)
class TableOptions(Options):
    processes: bool = section("the table")("-p", "with the processes on each device")


@dataclass(frozen=True)
class KeepOptions(Options):
    """What a restart keeps."""

    keep: Sequence[str] | None = _choice(
        "--keep NAMES",
        "with restart or --restart: keep these variables alone, or none",
        needs="--restart",
        nargs="+",
        action="extend",
    )
    force: bool = _choice(
        "--force", "with these, too: go on, and lose what cannot be kept", needs="--restart"
    )


@dataclass(frozen=True)
class RestartOptions(KeepOptions):
    """The options of ``%gpu restart``."""


@dataclass(frozen=True)
class ChoiceOptions(KeepOptions, ClusterOptions):
    """The options of a choice of GPUs."""

    apart: ClassVar = {
        "--soft": ("--restart",),
        # What has no meaning for the engines.
        "--cluster": ("--restart", "--keep", "--force", "--soft", "--threads"),
    }

    spec: Sequence[str] = argument("*")
    restart: bool = _choice(
        "--restart", "if it is too late, or CUDA has failed: restart; variables stay"
    )
    soft: bool = _choice(
        "--soft",
        "with off, if it is too late: keeps the process and all variables; device-agnostic code "
        "goes to the CPU, what is on a GPU goes on there; %gpu on ends it",
    )
    threads: int | None = _choice(
        "--threads N", "compute with N CPU threads; on and reset undo it", count
    )
    no_claim: bool = _choice(*_NO_CLAIM)


@dataclass(frozen=True)
class AutoOptions(ChoiceOptions):
    """The options of ``%gpu auto``."""

    apart: ClassVar = {**ChoiceOptions.apart, "--wait": ("--soft", "--cluster")}

    min_free: int | None = _auto(
        "--min-free SIZE", "with at least so much free memory, e.g. 20GiB", size
    )
    idle: bool = _auto("--idle", "without other processes, not busy, claimed by nobody")
    wait: float = _auto(
        "--wait SECONDS",
        "wait for such GPUs, that nobody claims; without --min-free for idle ones",
        duration_or_zero,
        0.0,
    )


@dataclass(frozen=True)
class WatchOptions(Options):
    switch: str | None = argument(choices=("on", "off"))
    every: float = section("watch")(
        "--every SECONDS", "between two updates (default: 1)", duration, 1.0
    )


@dataclass(frozen=True)
class DoctorOptions(Options):
    """The options of ``%gpu doctor``: those of every result."""


@dataclass(frozen=True)
class EnginesOptions(TargetOptions):
    profile: str | None = argument()


@dataclass(frozen=True)
class PinOptions(TargetOptions):
    no_claim: bool = _choice(*_NO_CLAIM)


@cache
def grammar() -> Grammar:
    """Return the forms of ``%gpu``."""
    return Grammar(
        "%gpu",
        Form("%gpu", TableOptions),
        Form("%gpu SPEC", ChoiceOptions),
        Form("%gpu auto", AutoOptions),
        Form("%gpu watch [on|off]", WatchOptions, "a panel beside the cells; off ends it"),
        Form("%gpu plot [FILE]", PlotOptions, "draw what it saw since it began, with the cells"),
        Form("%gpu doctor", DoctorOptions, "why torch can, or cannot, use the GPU; what helps"),
        Form(
            "%gpu cluster [PROFILE]",
            EnginesOptions,
            "the GPUs of ipyparallel's engines, on all hosts",
        ),
        Form("%gpu pin", PinOptions, "each engine its own GPU"),
        Form(
            "%gpu restart",
            RestartOptions,
            "a fresh process in place of this one, with its GPUs and all variables; the next cells "
            "go on",
        ),
        words=("off", "on", "reset", "auto"),
    )
