"""``%gpumem`` and ``%%gpumem``: GPU memory now, and its change by a statement or a cell.

What can be typed; the code's run; and the verbs. Completion reads the forms at a key press: what
measures is imported when it is used.
"""

from __future__ import annotations

import argparse
import keyword
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from gpumagic.cells.compile import CompiledCell, compile_cell
from gpumagic.errors import SpecError
from gpumagic.magics.forms import BASELINE, RESULT, Parser
from gpumagic.magics.parsing import Grammar, MagicLine
from gpumagic.system.writing import output_path
from gpumagic.wording import plural

if TYPE_CHECKING:
    from gpumagic.magics.shell_state import ShellState
    from gpumagic.memory.cell_meter import CellMeter
    from gpumagic.results.base import Result

# --- what can be typed ----------------------------------------------------------------------------

_RANGE = re.compile(r"([^\W\d]\w*)=(\d{1,18}):(\d{1,18})")
#: The verbs as they are written, and what they do.
_VERBS = {
    "on": "a line after every cell that changed GPU memory",
    "off": "no more lines after cells",
    "log": "the cells until now",
    "plot [FILE]": "the cells until now as a picture",
    "vars": "what holds the memory: variables, the notebook, and the rest; adds up to the byte",
    "free [NAMES]": "delete these variables (x*: all that begin so) and what the notebook itself "
    "keeps, collect garbage, clear what libraries keep, empty the cache; says what stays",
    "limit [SIZE|PERCENT|off]": "at most so much of each GPU for torch: 16GiB, 50%",
    "record [on|off]": "the allocator's history, by torch",
    "cells": "live memory by the cell that allocated it",
    "snapshot FILE": "for torch's memory_viz",
}


@cache
def grammar() -> Grammar:
    """Return the forms of ``%gpumem``."""
    verbs = (Parser(f"%gpumem {verb}", about) for verb, about in _VERBS.items())
    return Grammar(
        "%gpumem",
        _run(),
        *verbs,
        meant={
            **dict.fromkeys(("clear", "empty", "clean", "delete", "release", "reset"), "free"),
            **dict.fromkeys(("start", "enable", "watch"), "on"),
            **dict.fromkeys(("stop", "disable"), "off"),
            **dict.fromkeys(("status", "report", "info", "show", "summary"), ""),
            **dict.fromkeys(("variables", "who", "whos", "holders"), "vars"),
            "history": "log",
        },
        beside="on this line: --lines -f FUNCTION",
    )


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
        ArgumentTypeError: the text is no such range.
    """
    match = _RANGE.fullmatch(text)
    if match is None or not match[1].isidentifier() or keyword.iskeyword(match[1]):
        raise ArgumentTypeError(f"{text!r} is not a range of whole numbers; write batch=1:4096")
    low, high = int(match[2]), int(match[3])
    if low > high:
        raise ArgumentTypeError(f"{text!r} runs backwards; write the smaller number first")
    return match[1], low, high


# --- what runs it ---------------------------------------------------------------------------------


def run(
    magics: ShellState, line: MagicLine, cell: str | None, local_ns: dict[str, Any] | None
) -> Any:
    """Run the magic.

    Raises:
        SpecError: the line does not fit.
    """
    options = line.options
    if line.verb:
        return _run_verb(line.verb, magics, options, local_ns)
    if cell is None and not line.code:
        of_code = [name for name in line.given if name not in RESULT]
        if of_code:
            name = of_code[0]
            raise SpecError(f"{name} needs a statement or a cell: %gpumem {name} … y = f(x)")
        return _report(magics, options)
    if options.cluster:
        from gpumagic.magics import cluster

        return cluster.run_cell(magics, "gpumem", line, cell)
    source = line.code if cell is None else cell
    header = None if cell is None else f"%%gpumem {line.written}".rstrip()
    compiled = compile_cell(magics.shell, source, header=header, local_ns=local_ns)
    if options.fit is not None:
        from gpumagic.magics.gpumem import fit

        return fit.run(magics, options, compiled)
    return _measure(magics, options, compiled)


def _measure(magics: ShellState, options: argparse.Namespace, compiled: CompiledCell) -> Any:
    """Run the code once, measured as a whole or by line."""
    from gpumagic.cells.line_sources import selected_sources
    from gpumagic.magics.delivery import Delivery
    from gpumagic.memory import comparison
    from gpumagic.memory.line_memory import LineMeasurement
    from gpumagic.memory.measurement import Measurement
    from gpumagic.results.memory import MemoryDelta

    class MemoryDelivery(Delivery):
        kind, others = MemoryDelta, "times"
        compare, check = staticmethod(comparison.against), staticmethod(comparison.check)

    measured: Measurement | LineMeasurement = Measurement()
    if options.lines:
        measured = LineMeasurement(selected_sources(compiled, options.functions))
    delivery = MemoryDelivery(magics, options)

    @contextmanager
    def reported() -> Iterator[None]:
        failed = True
        try:
            with measured:
                yield
            failed = False
        finally:
            result = measured.finished  # None: an interrupt came as the measurement began or ended
            silent = failed and isinstance(result, MemoryDelta) and not result.says_something
            delivery.deliver(None if silent else result)

    return compiled.run_within(reported(), lambda value: delivery.finish(value, measured.finished))


def _report(magics: ShellState, options: argparse.Namespace) -> Any:
    from gpumagic.cuda import failure
    from gpumagic.magics.delivery import hand_over
    from gpumagic.memory.limit import LIMIT
    from gpumagic.memory.report import memory_report
    from gpumagic.selection import remedies

    report = magics.memory_report = memory_report(magics.memory_report)
    LIMIT.apply()
    failure.check_context()
    limit = LIMIT.limits().limits
    limit = limit and f"Limited to {limit}; %gpumem limit says by what."
    notes = (*report.notes, remedies.dead_context_note(), limit)
    report = replace(report, notes=tuple(filter(None, notes)))
    return hand_over(magics.shell, report, options)


# --- the verbs ------------------------------------------------------------------------------------

_MESSAGES = {
    "on": "A line with the change follows each cell that changed GPU memory; '%gpumem off' ends "
    "that.",
    "off": "No more lines after cells; '%gpumem log' shows the previous ones.",
}


def _run_verb(
    verb: str, magics: ShellState, options: argparse.Namespace, local_ns: dict[str, Any] | None
) -> Any:
    """Run a verb; ``local_ns`` has the caller's own variables.

    Raises:
        DeviceError: torch or a GPU is missing, CUDA is not in use or has failed, or the allocator
            cannot do it.
        SpecError: the file cannot be written, a variable that is to be freed does not exist, or
            there is nothing to draw.
    """
    from gpumagic.magics.delivery import hand_over, say, store

    if verb == "plot":
        return _plot(magics, options)
    if verb not in _MESSAGES:
        return hand_over(magics.shell, _result(verb, magics, options, local_ns), options)
    meter = _meter(magics)
    if verb == "on":
        meter.on()
    else:
        meter.off()
    if not options.quiet:
        say(magics.shell, _MESSAGES[verb])
    return store(magics.shell, meter.log(), options)


def _result(
    verb: str, magics: ShellState, options: argparse.Namespace, local_ns: dict[str, Any] | None
) -> Result:
    """Do what a verb says, and return what it shows."""
    from gpumagic.memory import history
    from gpumagic.memory.limit import LIMIT

    shell = magics.shell
    if verb == "log":
        return _meter(magics).log()
    if verb == "vars":
        from gpumagic.memory.holders import holders

        return holders(shell=shell)
    if verb == "free":
        from gpumagic.memory.freeing import free

        names = ",".join(options.names).replace(",", " ").split()
        own = () if local_ns is None or local_ns is shell.user_ns else local_ns
        return free(shell, names, own)
    if verb == "snapshot":
        return history.write_snapshot(output_path(options.file))
    if verb == "cells":
        return history.live_by_cell(shell)
    if verb == "record":
        if magics.memory_history is None:
            magics.memory_history = history.History()
            magics.undo.callback(magics.memory_history.release)
        record = magics.memory_history
        return {"on": record.on, "off": record.off, None: record.state}[options.switch]()
    if options.size == 0:
        LIMIT.lift()
    elif options.size is not None:
        LIMIT.set(options.size)
    return LIMIT.state()


def _meter(magics: ShellState) -> CellMeter:
    """Return the meter of a session's cells, made at the first call."""
    if magics.cell_memory is None:
        from gpumagic.magics.delivery import show_below
        from gpumagic.memory.cell_meter import CellMeter

        shell = magics.shell
        magics.cell_memory = CellMeter(magics.hooks, lambda cell, _: show_below(shell, cell))
        magics.undo.callback(magics.cell_memory.off)
    return magics.cell_memory


def _plot(magics: ShellState, options: argparse.Namespace) -> Any:
    from gpumagic.magics.delivery import show_picture, store

    log = _meter(magics).log()
    if not any(cell.devices for cell in log):
        raise SpecError("no cell has used GPU memory yet; '%gpumem on' begins to record them")
    plot = log.plot()
    title = f"GPU memory over {plural(len(log), 'cell')}"
    if empty := len(log.known_devices()) - len(log.drawn_devices()):
        title += f"; {plural(empty, 'unchanged GPU')} left out"
    show_picture(magics.shell, plot, title, options.file, "%gpumem plot", quiet=options.quiet)
    return store(magics.shell, plot.figure, options)
