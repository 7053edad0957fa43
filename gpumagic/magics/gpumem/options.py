"""The options of ``%gpumem`` and of its verbs.

Light to import: completion does, at a key press.
"""

from __future__ import annotations

import argparse
import keyword
import re
from typing import Any, NamedTuple

from gpumagic.magics.argument_types import count, duration, size
from gpumagic.magics.parsing import Parser, add_functions_option, add_result_options
from gpumagic.magics.shared_options import add_baseline, add_targets

#: Without an argument ``limit`` shows the limit.
SHOW = object()
#: Smaller numbers without a unit are not meant as bytes.
_LEAST = 1 << 20
_RANGE = re.compile(r"([^\W\d]\w*)=(\d{1,18}):(\d{1,18})")

_DESCRIPTION = """\
GPU memory: what is in use now, and its change by a statement or a cell.

  %gpumem                 a report: what torch holds and held at most, what this process holds
                          outside torch's allocator (CUDA context, libraries), what other
                          processes hold, what is free; and the change since the last report
  %gpumem STATEMENT       run the statement; the exact change of allocated and reserved memory, and
                          the exact peak of allocated memory above the start
  %%gpumem                the same for a cell, also when it raises
  %%gpumem --lines        by line: change, peak above the line's start, and what stayed: of the
                          bytes that the line allocated those alive when the cell ended. What the
                          functions that it calls do counts to the line (also what is freed when
                          they return); with -f FUNC their own lines are shown too
  %gpumem on | off        after every cell that changed GPU memory one line: change, peak, now
  %gpumem log             the cells until now: change, peak and time of each
  %gpumem plot [FILE]     the same as a picture, with the devices' limits (needs matplotlib)
  %gpumem record on|off   the allocator's history with Python stacks, the newest --entries N events
  %gpumem cells           live memory by the cell that allocated it (needs the history)
  %gpumem snapshot FILE   segments, blocks and the history, if any, for torch's memory_viz
  %gpumem vars            what holds the memory: your variables (modules by parameters, buffers and
                          gradients), the notebook (Out, _, the last exception), and the rest; adds
                          up to the byte. --gc looks through all objects for the rest
  %gpumem park            copy all GPU memory of this process to the host, and give it back to the
                          device; variables stay. It comes back before a cell that may use it.
                          --after 15min: after so long without a cell, by itself; off ends that
  %gpumem unpark          bring it back now; --wait waits until there is enough memory
  %gpumem free [NAMES]    delete these variables and the notebook's own references, collect garbage,
                          empty the cache; shows what each step freed. After it %debug has nothing
                          to show. --dry-run shows it and does nothing
  %gpumem limit SIZE      torch's allocator bounded as if each GPU had so much (16GiB, 500MiB), the
                          CUDA context and libraries included: beyond it torch runs out of memory.
                          Alone it says what the limit is; off lifts it
  %%gpumem --fit N=LO:HI  the largest value of the variable N with which the cell fits, or which two
                          values it is between, found in at most 12 runs; N is left at the largest
                          value that ran
  %gpumem explain off     no explanation any more below a cell that ran out of memory; on: again

A line that begins with such a verb and goes on as a statement is one (%gpumem log = 3), and so is
what follows -- (%gpumem -- log).

The figures of a statement or a cell come from the counters of torch's allocator: nothing is
sampled, synchronised, collected or emptied, no context is made, and
torch.cuda.max_memory_allocated() returns afterwards what it would have returned without.
"""

_EXAMPLES = """\
examples:
  %gpumem
  report = %gpumem -o -q
  %gpumem y = model(x)
  %gpumem -v forward y = model(x)
  %gpumem vars
  %gpumem free --dry-run
  %gpumem free optimizer batch

  %%gpumem
  loss = model(x).sum()
  loss.backward()

  %%gpumem --lines -f model.forward
  loss = model(x).sum()
  loss.backward()

  %gpumem limit 16GiB
  %gpumem park
  %gpumem park --after 15min

  %%gpumem --fit batch=1:4096
  loss = model(torch.rand(batch, 512, device="cuda")).sum()
  loss.backward()
"""


# argparse formats it by %.
_USAGE = (
    "%%gpumem [-o] [-v NAME] [-q] [VERB … | [--lines] [-f FUNC] STATEMENT]\n"
    "       %%%%gpumem [-o] [-v NAME] [-q] [--lines] [-f FUNC]"
)


def parser() -> Parser:
    """Return the parser of the options of ``%gpumem``."""
    made = Parser("%gpumem", description=_DESCRIPTION, epilog=_EXAMPLES, usage=_USAGE)
    made.add_argument(
        "--lines", action="store_true", help="by line: change, peak and what stayed until the end"
    )
    add_functions_option(made)
    made.add_argument(
        "--fit",
        metavar="NAME=LOW:HIGH",
        type=value_range,
        action=_Once,
        help="the largest value of this variable with which the cell fits into memory: run it with "
        "a few, extrapolate, confirm; at most 12 runs, which may leave it between two values "
        "(batch=1:4096). The variable is left at the largest value that ran",
    )
    add_baseline(made, "a device's peak is that much higher")
    add_targets(made.add_argument_group("cluster (needs ipyparallel)"))
    add_result_options(made)
    return made


def verb_parser(verb: str) -> Parser:
    """Return the parser of the options of ``%gpumem VERB``."""
    made = Parser(f"%gpumem {verb}")
    add = made.add_argument
    if verb == "record":
        add("switch", nargs="?", choices=("on", "off"))
        add(
            "--entries",
            type=count(most=10_000_000),
            metavar="N",
            help="the newest events that the history keeps",
        )
    elif verb == "snapshot":
        add("file", metavar="FILE")
    elif verb == "vars":
        add(
            "--gc",
            dest="scan",
            action="store_true",
            help="look through all objects of the process for what no variable references",
        )
    elif verb == "free":
        add("names", nargs="*", metavar="NAME", help="variables to delete as well")
        add("--dry-run", action="store_true", help="show what it would free, and do nothing")
    elif verb == "explain":
        add("state", nargs="?", choices=("on", "off"))
    elif verb == "limit":
        add("size", nargs="?", type=_size_or_off, default=SHOW, metavar="SIZE|off")
    elif verb == "plot":
        add("file", nargs="?", help="write the picture there (.png, .svg, .pdf)")
    elif verb == "park":
        add("state", nargs="?", choices=("off",), help="park no more by itself")
        add(
            "--after",
            type=duration,
            metavar="TIME",
            help="park by itself after so long without a cell, for example 15min",
        )
    elif verb == "unpark":
        add("--wait", action="store_true", help="wait until there is enough memory")
    add_result_options(made)
    return made


class _Once(argparse.Action):
    """Stores the value of an option that may be given once."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise argparse.ArgumentError(self, "only one variable can be searched at a time")
        setattr(namespace, self.dest, values)


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
