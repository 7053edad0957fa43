"""The forms of ``%gpumem``: a verb, a statement, or nothing."""

from __future__ import annotations

import argparse
import keyword
import re
from functools import cache
from typing import NamedTuple

from gpumagic.magics.argument_types import size
from gpumagic.magics.parsing import BASELINE, PLAIN, Grammar, Parser

#: Without an argument ``limit`` shows the limit.
SHOW = object()
_RANGE = re.compile(r"([^\W\d]\w*)=(\d{1,18}):(\d{1,18})")

#: The verbs of lines after cells.
PER_CELL = ("on", "off", "log", "plot")
#: All verbs, and what they do.
_VERBS = {
    "on": "a line after every cell that changed GPU memory",
    "off": "no more lines after cells",
    "log": "the cells until now",
    "plot": "the cells until now as a picture",
    "vars": "what holds the memory: variables, the notebook, and the rest; adds up to the byte",
    "free": "delete these variables and what the notebook itself keeps, collect garbage, clear "
    "cuBLAS's work space, empty the cache; says what stays",
    "limit": "at most so much of each GPU for torch, e.g. 16GiB",
    "record": "the allocator's history, by torch",
    "cells": "live memory by the cell that allocated it",
    "snapshot": "for torch's memory_viz",
}


@cache
def grammar() -> Grammar:
    """Return the forms of ``%gpumem``."""
    forms = {verb: Parser(f"%gpumem {verb}", about) for verb, about in _VERBS.items()}
    forms["record"].add_argument("switch", nargs="?", choices=("on", "off"))
    forms["snapshot"].add_argument("file", metavar="FILE")
    forms["free"].add_argument("names", nargs="*", metavar="NAMES")
    forms["limit"].add_argument(
        "size", nargs="?", type=_size_or_off, default=SHOW, metavar="SIZE|off"
    )
    forms["plot"].add_argument("file", nargs="?", metavar="FILE")
    return Grammar("%gpumem", {PLAIN: _run(), **forms})


def _run() -> Parser:
    """Return the form of a line that runs code, or shows the report."""
    form = Parser("%gpumem")
    form.add_lines("by line: change, and peak above the line's start")
    form.section("the largest batch")(
        "--fit NAME=LOW:HIGH",
        "the largest value of the variable NAME with which the cell fits into memory, within 2 %; "
        "it runs the cell up to 12 times, and trains the model each time: use a copy",
        value_range,
    )
    form.apart("--fit", ("--lines", *BASELINE))
    form.apart("--lines", BASELINE)
    form.add_baseline()
    form.add_targets()
    form.needs("--cluster", "-t")
    form.apart("--cluster", ("--lines", "--fit", *BASELINE))
    return form


class Range(NamedTuple):
    """``--fit batch=1:4096``."""

    name: str
    low: int
    high: int


def value_range(text: str) -> Range:
    """Return the variable and its range.

    Raises:
        argparse.ArgumentTypeError: the text is no such range.
    """
    match = _RANGE.fullmatch(text)
    if match is None or not match[1].isidentifier() or keyword.iskeyword(match[1]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of whole numbers; write batch=1:4096"
        )
    found = Range(match[1], int(match[2]), int(match[3]))
    if found.low > found.high:
        raise argparse.ArgumentTypeError(f"{text!r} runs backwards; write the smaller number first")
    return found


def _size_or_off(text: str) -> int | None:
    if text.lower() == "off":
        return None
    found = size(text)
    if found <= 0:
        raise argparse.ArgumentTypeError("0 bytes are no limit; write 16GiB, or off")
    return found
