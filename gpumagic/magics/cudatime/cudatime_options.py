"""The forms of ``%cudatime``: a statement, a verb, or ``--compare``."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from functools import cache, partial

from gpumagic.magics.argument_types import count, duration, duration_or_zero
from gpumagic.magics.parsing import BASELINE, Grammar, Parser

#: The form that shows named results.
COMPARE = "--compare"
#: Each of these options alone makes the run a repeated one.
REPEATING = {"-n", "-r", "-w", "--repeat", "-s", "--max-time", "--cold", "--on", "--energy"}
#: Options that run the code once more.
AGAIN = {"--kernels", "--trace", "--flops"}
#: Options that have no meaning for the engines of a cluster.
_ONLY_HERE = ("--lines", "--name", "--kernels", "--trace", "--on", "--flops", "--energy", *BASELINE)
#: Seconds from which a cell without a sign of GPU work gets a line by default.
ABOVE = 0.1


@cache
def grammar() -> Grammar:
    """Return the forms of ``%cudatime``."""
    on = Parser(
        "%cudatime on",
        "a line with the times after every cell with a sign of GPU work, or over 0.1 s",
    )
    above = "after a cell without such a sign: from this time on"
    add = on.section("lines after cells")
    add("--above TIME", above, duration_or_zero, default=ABOVE)
    return Grammar(
        "%cudatime",
        _run(),
        on,
        Parser("%cudatime off", "no more lines after cells"),
        Parser("%cudatime log", "the times of the cells until now, and their sum"),
        Parser(f"%cudatime {COMPARE} [NAMES]", "the results of --name side by side"),
    )


def _run() -> Parser:
    """Return the form of a line that runs code."""
    form = Parser("%cudatime STATEMENT")
    add = form.section("repeated runs: the code is a function's body, and assigns no variables")
    add("-n N", "loops in a repeat", count, dest="loops")
    add("-r R", "repeats", count, dest="repeats")
    add("-w W", "warm-up loops (0: run no others)", partial(count, least=0), dest="warmup")
    add("-s SETUP", "code before each repeat, not timed", dest="setup")
    add("--repeat", "until the median is precise to 1 %")
    add("--max-time T", "but no longer than this (default: 3s)", duration)
    add("--cold", "with an empty L2 cache before each loop")
    add("--on DEVICES", "on each, and compare: cpu,cuda:0", _devices)
    add("--energy", "joules per loop, and mean watts; runs it longer")
    form.add_lines("GPU and host time of each line, and its waits")
    form.apart("--lines", sorted(REPEATING))
    form.apart("--on", ("--kernels", "--trace", "--nvtx", "--flops", "--energy", *BASELINE))
    add = form.section("where the time goes: all but --nvtx run the code once more")
    add("--kernels", "the GPU kernels by time, from torch's profiler")
    add("--trace FILE", "its trace, for ui.perfetto.dev (.json, .json.gz)")
    add("--nvtx NAME", "an NVTX range around the code, for Nsight")
    add("--flops", "floating-point operations, and per second")
    form.section("comparing")("--name NAME", "name the result, for --compare", _name)
    form.add_baseline()
    form.add_targets(_ONLY_HERE)
    return form


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
