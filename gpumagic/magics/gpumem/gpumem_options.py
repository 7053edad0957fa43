"""What can be typed behind ``%gpumem``: the options, the verbs, and their help."""

from __future__ import annotations

import keyword
import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from gpumagic.magics.argument_types import limit
from gpumagic.magics.option_forms import (
    BASELINE,
    BaselineOptions,
    ClusterOptions,
    Form,
    NamesOptions,
    Options,
    PlotOptions,
    argument,
    by_line,
    functions,
    section,
)
from gpumagic.magics.parsing import Grammar

_RANGE = re.compile(r"([^\W\d]\w*)=(\d{1,18}):(\d{1,18})")


def value_range(text: str) -> tuple[str, int, int]:
    """Return the variable of ``batch=1:4096``, and its range.

    Raises:
        ArgumentTypeError: the text is no such range.
    """
    match = _RANGE.fullmatch(text)
    if match is None or not match[1].isidentifier() or keyword.iskeyword(match[1]):
        raise ArgumentTypeError(f"{text!r} is not a range of whole numbers; write batch=1:4096")
    low, high = int(match[2]), int(match[3])
    if low > high:
        raise ArgumentTypeError(f"{text!r} runs backwards; write the smaller number first")
    return match[1], low, high


@dataclass(frozen=True)
class RunOptions(BaselineOptions, ClusterOptions):
    """The options of a line that runs code."""

    apart: ClassVar = {
        "--fit": ("--lines", *BASELINE),
        "--lines": BASELINE,
        "--cluster": ("--lines", "--fit", *BASELINE),
    }

    lines: bool = by_line("--lines", "by line: change, and peak above the line's start")
    functions: Sequence[str] = functions()
    fit: tuple[str, int, int] | None = section("the largest batch")(
        "--fit NAME=LOW:HIGH",
        "the largest value of the variable NAME with which the cell fits into memory, within 2 %; "
        "it runs the cell up to 12 times, and trains the model each time: use a copy",
        value_range,
    )


@dataclass(frozen=True)
class LimitOptions(Options):
    #: Bytes, or a part of each device; 0 for no limit.
    size: int | float | None = argument(type=limit)


@dataclass(frozen=True)
class RecordOptions(Options):
    switch: str | None = argument(choices=("on", "off"))


@dataclass(frozen=True)
class SnapshotOptions(Options):
    file: str = argument(nargs=None)


@cache
def grammar() -> Grammar:
    """Return the forms of ``%gpumem``."""
    return Grammar(
        "%gpumem",
        Form("%gpumem STATEMENT", RunOptions),
        Form("%gpumem on", about="a line after every cell that changed GPU memory"),
        Form("%gpumem off", about="no more lines after cells"),
        Form("%gpumem log", about="the cells until now"),
        Form("%gpumem plot [FILE]", PlotOptions, "the cells until now as a picture"),
        Form(
            "%gpumem vars",
            about="what holds the memory: variables, the notebook, and the rest; adds up to the "
            "byte",
        ),
        Form(
            "%gpumem free [NAMES]",
            NamesOptions,
            "delete these variables (x*: all that begin so) and what the notebook itself keeps, "
            "collect garbage, clear what libraries keep, empty the cache; says what stays",
        ),
        Form(
            "%gpumem limit [SIZE|PERCENT|off]",
            LimitOptions,
            "at most so much of each GPU for torch: 16GiB, 50%",
        ),
        Form("%gpumem record [on|off]", RecordOptions, "the allocator's history, by torch"),
        Form("%gpumem cells", about="live memory by the cell that allocated it"),
        Form("%gpumem snapshot FILE", SnapshotOptions, "for torch's memory_viz"),
        beside="on this line: --lines -f FUNCTION",
    )
