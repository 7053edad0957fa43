"""The forms of ``%gpumem``: a verb, a statement, or nothing; and its help."""

from __future__ import annotations

import argparse
import keyword
import re
from functools import cache
from typing import NamedTuple

from gpumagic.magics.argument_types import duration, size
from gpumagic.magics.parsing import (
    BASELINE,
    PLAIN,
    Grammar,
    Parser,
    add_baseline,
    add_lines,
    add_targets,
)

#: Without an argument ``limit`` shows the limit.
SHOW = object()
#: Smaller numbers without a unit are not meant as bytes.
_LEAST = 1 << 20
_RANGE = re.compile(r"([^\W\d]\w*)=(\d{1,18}):(\d{1,18})")

HELP = """\
%gpumem [VERB | options STATEMENT]     %%gpumem [options]

GPU memory now, or its change by a statement or a cell. The figures are those
of torch's allocator, exact, and reading them changes nothing.

  %gpumem                     a report: what torch, this process outside torch,
                              and other processes hold; the change since
  %gpumem y = model(x)        the change by a statement, and its peak
  %%gpumem                    the same for a cell, also when it fails
  %gpumem on                  after every cell that changed GPU memory a line;
                              off ends that, log shows the cells until now
  %gpumem plot [FILE]         the cells until now as a picture
  %gpumem vars                what holds the memory: variables, the notebook,
                              and the rest; adds up to the byte
  %gpumem free [NAMES]        delete these variables and what the notebook
                              itself keeps, collect garbage, empty the cache
  %gpumem park                copy all to the host and give the GPU's memory
                              back, until the next cell that is not only lines
                              of %gpu or %gpumem; variables stay (torch 2.12)
  %gpumem park --after 15min  by itself after so long without a cell; park off
  %gpumem unpark              bring it back now
  %gpumem limit 16GiB         as if each GPU were so small; limit off
  %gpumem record on           the allocator's history, by torch; record off
  %gpumem cells               live memory by the cell that allocated it
  %gpumem snapshot FILE       for torch's memory_viz

of a statement or a cell
  --lines                     by line: change, and peak above the line's start
  -f FUNC                     with --lines: this function's lines, too
  --fit NAME=LOW:HIGH         the largest value of the variable NAME with which
                              the cell fits into memory, in a few runs
  --save FILE                 write the result to FILE, as JSON
  --against FILE              compare with the result in FILE
  --fail-above PERCENT        and fail if a peak is so much higher, e.g. 10%
cluster (needs ipyparallel)
  --cluster                   on the engines, not in this kernel
  -t, --targets ENGINES       only these engines: 2, 0,3, 0:4
result
  -o                          return the result object
  -v NAME                     store it in NAME
  -q                          print nothing, as does a ; at the end

examples
  %gpumem -v forward y = model(x)
  %gpumem -- log              code that begins as a verb does follows --
  %%gpumem --lines -f model.forward
  %%gpumem --fit batch=1:4096
"""

#: By verb: its module in this folder.
VERBS = {
    **dict.fromkeys(("on", "off", "log", "plot"), "per_cell"),
    **dict.fromkeys(("record", "cells", "snapshot", "limit"), "history"),
    **dict.fromkeys(("vars", "free"), "holders"),
    "park": "park",
    "unpark": "park",
}


@cache
def grammar() -> Grammar:
    """Return the forms of ``%gpumem``."""
    forms = {verb: Parser(f"%gpumem {verb}") for verb in VERBS}
    forms["record"].add_argument("switch", nargs="?", choices=("on", "off"))
    forms["snapshot"].add_argument("file", metavar="FILE")
    forms["free"].add_argument("names", nargs="*", metavar="NAME")
    forms["limit"].add_argument(
        "size", nargs="?", type=_size_or_off, default=SHOW, metavar="SIZE|off"
    )
    forms["plot"].add_argument("file", nargs="?", metavar="FILE")
    forms["park"].add_argument("state", nargs="?", choices=("off",))
    forms["park"].add_argument("--after", type=duration, metavar="TIME")
    return Grammar("%gpumem", {PLAIN: _run(), **forms})


def _run() -> Parser:
    """Return the form of a line that runs code, or shows the report."""
    form = Parser("%gpumem")
    add_lines(form)
    form.add_argument("--fit", metavar="NAME=LOW:HIGH", type=value_range, action="append")
    form.apart("--fit", ("--lines", *sorted(BASELINE)))
    form.apart("--lines", sorted(BASELINE))
    add_baseline(form)
    add_targets(form)
    form.apart("--cluster", ("--lines", "--fit", *sorted(BASELINE)))
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a range; write batch=1:4096")
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
    if found < _LEAST and text.strip()[-1].isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} has no unit; write {text.strip()}GiB")
    return found
