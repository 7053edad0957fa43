"""The forms of ``%gpumem``: a verb, a statement, or nothing."""

from __future__ import annotations

import argparse
import keyword
import re
from functools import cache

from gpumagic.magics.parsing import BASELINE, Grammar, Parser

_RANGE = re.compile(r"([^\W\d]\w*)=(\d{1,18}):(\d{1,18})")


#: The verbs as they are written, and what they do.
_VERBS = {
    "on": "a line after every cell that changed GPU memory",
    "off": "no more lines after cells",
    "log": "the cells until now",
    "plot [FILE]": "the cells until now as a picture",
    "vars": "what holds the memory: variables, the notebook, and the rest; adds up to the byte",
    "free [NAMES]": "delete these variables and what the notebook itself keeps, collect garbage, "
    "clear cuBLAS's work space, empty the cache; says what stays",
    "limit [SIZE|PERCENT|off]": "at most so much of each GPU for torch: 16GiB, 50%",
    "record [on|off]": "the allocator's history, by torch",
    "cells": "live memory by the cell that allocated it",
    "snapshot FILE": "for torch's memory_viz",
}


@cache
def grammar() -> Grammar:
    """Return the forms of ``%gpumem``."""
    verbs = (Parser(f"%gpumem {verb}", about) for verb, about in _VERBS.items())
    return Grammar("%gpumem", _run(), *verbs)


def _run() -> Parser:
    """Return the form of a line that runs code, or shows the report."""
    form = Parser("%gpumem STATEMENT")
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
    form.add_targets(only_here=("--lines", "--fit", *BASELINE))
    return form


def value_range(text: str) -> tuple[str, int, int]:
    """Return the variable of ``batch=1:4096``, and its range.

    Raises:
        argparse.ArgumentTypeError: the text is no such range.
    """
    match = _RANGE.fullmatch(text)
    if match is None or not match[1].isidentifier() or keyword.iskeyword(match[1]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of whole numbers; write batch=1:4096"
        )
    low, high = int(match[2]), int(match[3])
    if low > high:
        raise argparse.ArgumentTypeError(f"{text!r} runs backwards; write the smaller number first")
    return match[1], low, high
