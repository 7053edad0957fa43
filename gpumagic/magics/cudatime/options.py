"""The forms of ``%cudatime``: a statement, a verb, or ``--compare``."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from functools import cache

from gpumagic.magics.argument_types import count, duration
from gpumagic.magics.parsing import BASELINE, PLAIN, Grammar, Parser

#: The verbs of lines after cells.
VERBS = ("on", "off", "log")
#: The form that shows named results.
COMPARE = "--compare"
#: Each of these options alone makes the run a repeated one.
REPEATING = {*("-n", "-r", "-w", "--repeat", "-s", "--max-time", "--cold", "--on", "--energy")}
#: Options that have no meaning for the engines of a cluster.
_ONLY_HERE = ("--lines", "--name", "--kernels", "--trace", "--on", "--flops", "--energy", *BASELINE)
#: Seconds from which a cell without a sign of GPU work gets a line by default.
ABOVE = 0.1


@cache
def grammar() -> Grammar:
    """Return the forms of ``%cudatime``."""
    forms = {verb: Parser(f"%cudatime {verb}") for verb in (*VERBS, COMPARE)}
    forms["on"].add_argument("--above", metavar="TIME", type=duration(zero=True), default=ABOVE)
    forms[COMPARE].add_argument("names", nargs="*", metavar="NAME", default=[])
    return Grammar("%cudatime", {PLAIN: _run(), **forms})


def _run() -> Parser:
    """Return the form of a line that runs code."""
    form = Parser("%cudatime")
    add = form.add_argument
    add("-n", dest="loops", metavar="N", type=count())
    add("-r", dest="repeat", metavar="R", type=count())
    add("-w", dest="warmup", metavar="W", type=count(0))
    add("--repeat", dest="repeated", action="store_true")
    add("-s", dest="setup", metavar="CODE")
    add("--max-time", metavar="T", type=duration())
    add("--on", metavar="DEVICES", type=_devices)
    form.flags("--cold")
    form.add_lines()
    form.apart("--lines", sorted(REPEATING))
    form.apart("--on", ("--kernels", "--trace", "--nvtx", "--flops", "--energy", *BASELINE))
    add("--trace", metavar="FILE")
    add("--nvtx", metavar="NAME")
    form.flags("--kernels", "--flops", "--energy")
    add("--name", metavar="NAME", type=_name)
    form.add_baseline()
    form.add_targets()
    form.apart("--cluster", _ONLY_HERE)
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
