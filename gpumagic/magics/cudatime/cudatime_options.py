"""What can be typed behind ``%cudatime``: the options, the verbs, and their help."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

from gpumagic.magics.argument_types import count, duration, duration_or_zero
from gpumagic.magics.option_forms import (
    BASELINE,
    BaselineOptions,
    ClusterOptions,
    Form,
    NamesOptions,
    Options,
    by_line,
    comparing,
    functions,
    section,
)
from gpumagic.magics.parsing import Grammar

#: Each of these options alone makes the run a repeated one.
REPEATING = {"-n", "-r", "-w", "--repeat", "-s", "--max-time", "--cold", "--on", "--energy"}
#: Options that run the code once more.
AGAIN = {"--kernels", "--trace", "--flops"}
#: Options that have no meaning for the engines of a cluster.
_ONLY_HERE = ("--lines", "--name", "--kernels", "--trace", "--on", "--flops", "--energy", *BASELINE)
#: Seconds from which a cell without a sign of GPU work gets a line by default.
ABOVE = 0.1


def _devices(text: str) -> list[str]:
    """Return ``["cpu", "cuda:0"]`` from ``cpu,cuda``."""
    names = [f"{word}:0" if word == "cuda" else word for word in text.replace(",", " ").split()]
    if not names or not all(re.fullmatch(r"cpu|cuda:\d{1,3}", name) for name in names):
        raise ArgumentTypeError(f"{text!r} is no list of devices; write cpu,cuda:0")
    return [*dict.fromkeys(names)]


def _name(word: str) -> str:
    if not word or "," in word:
        raise ArgumentTypeError(f"{word!r} is not a name; it must not hold a comma")
    return word


_repeated = section("repeated runs: the code is a function's body, and assigns no variables")
_further = section("where the time goes: all but --nvtx run the code once more")


@dataclass(frozen=True)
class RunOptions(BaselineOptions, ClusterOptions):
    """The options of a line that runs code."""

    apart: ClassVar = {
        "--lines": sorted(REPEATING),
        "--on": ("--kernels", "--trace", "--nvtx", "--flops", "--energy", *BASELINE),
        "--cluster": _ONLY_HERE,
    }

    loops: int | None = _repeated("-n N", "loops in a repeat", count)
    repeats: int | None = _repeated("-r R", "repeats", count)
    warmup: int | None = _repeated(
        "-w W", "warm-up loops (0: run no others)", partial(count, least=0)
    )
    setup: str | None = _repeated("-s SETUP", "code before each repeat, not timed")
    repeat: bool = _repeated("--repeat", "until the median is precise to 1 %")
    max_time: float | None = _repeated(
        "--max-time T", "but no longer than this (default: 3s)", duration
    )
    cold: bool = _repeated("--cold", "with an empty L2 cache before each loop")
    on: Sequence[str] = _repeated("--on DEVICES", "on each, and compare: cpu,cuda:0", _devices, ())
    energy: bool = _repeated("--energy", "joules per loop, and mean watts; runs it longer")
    lines: bool = by_line("--lines", "GPU and host time of each line, and its waits")
    functions: Sequence[str] = functions()
    kernels: bool = _further("--kernels", "the GPU kernels by time, from torch's profiler")
    trace: str | None = _further("--trace FILE", "its trace, for ui.perfetto.dev (.json, .json.gz)")
    nvtx: str | None = _further("--nvtx NAME", "an NVTX range around the code, for Nsight")
    flops: bool = _further("--flops", "floating-point operations, and per second")
    name: str | None = comparing("--name NAME", "name the result, for compare and --against", _name)


@dataclass(frozen=True)
class OnOptions(Options):
    above: float = section("lines after cells")(
        "--above TIME",
        "also after cells without GPU work that take longer",
        duration_or_zero,
        ABOVE,
    )


@cache
def grammar() -> Grammar:
    """Return the forms of ``%cudatime``: a statement, or a verb."""
    return Grammar(
        "%cudatime",
        Form("%cudatime STATEMENT", RunOptions),
        Form(
            "%cudatime on",
            OnOptions,
            "a line with the times after every cell with a sign of GPU work, or over 0.1 s",
        ),
        Form("%cudatime off", about="no more lines after cells"),
        Form("%cudatime log", about="the times of the cells until now, and their sum"),
        Form("%cudatime compare [NAMES]", NamesOptions, "the results of --name side by side"),
        Form(
            "%cudatime forget [NAMES]",
            NamesOptions,
            "these results, or all, have no names any more",
        ),
        beside="on this line: -r 5 repeats, -s SETUP, --lines -f FUNCTION",
    )
