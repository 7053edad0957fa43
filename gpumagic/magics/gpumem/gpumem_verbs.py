"""The verbs of ``%gpumem``: lines after cells; what holds memory, and what frees or limits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.delivery import hand_over, say, show_below, show_plot, store
from gpumagic.magics.gpumem import memory_plot
from gpumagic.magics.gpumem.gpumem_options import LimitOptions, RecordOptions
from gpumagic.magics.magic_state import MagicState
from gpumagic.magics.option_forms import NamesOptions, Options, PlotOptions
from gpumagic.memory import history
from gpumagic.memory.every_cell_memory import CellMeter
from gpumagic.memory.freeing import free
from gpumagic.memory.holders import holders
from gpumagic.memory.limit import LIMIT
from gpumagic.results.base import Result
from gpumagic.results.memory.freed import Freed
from gpumagic.system.writing import output_path
from gpumagic.wording import plural


def run(verb: str, magics: MagicState, options: Options, local_ns: Mapping[str, Any] | None) -> Any:
    """Run a verb; ``local_ns`` has the caller's own variables.

    Raises:
        DeviceError: torch or a GPU is missing, CUDA is not in use or has failed, or the allocator
            cannot do it.
        SpecError: the file cannot be written, a variable that is to be freed does not exist, or
            there is nothing to draw.
    """
    if isinstance(options, PlotOptions):
        return _plot(magics, options)
    if isinstance(options, NamesOptions):
        return hand_over(magics.shell, _free(magics, options, local_ns), options)
    if verb in _RESULTS:
        return hand_over(magics.shell, _RESULTS[verb](magics, options), options)
    meter = _meter(magics)
    if verb == "on":
        meter.on()
        message = (
            "A line with the change follows each cell that changed GPU memory; '%gpumem off' ends "
            "that."
        )
    else:
        meter.off()
        message = "No more lines after cells; '%gpumem log' shows the previous ones."
    say(magics.shell, message, quiet=options.quiet)
    return store(magics.shell, meter.log(), options)


def _meter(magics: MagicState) -> CellMeter:
    """Return the meter of a session's cells, made at the first call."""
    if magics.cell_memory is None:
        shell = magics.shell
        magics.cell_memory = CellMeter(magics.hooks, lambda cell: show_below(shell, cell))
        magics.undo.callback(magics.cell_memory.off)
    return magics.cell_memory


def _plot(magics: MagicState, options: PlotOptions) -> Any:
    log = _meter(magics).log()
    if not any(cell.devices for cell in log):
        raise SpecError("no cell has used GPU memory yet; '%gpumem on' begins to record them")
    plot = memory_plot.draw(log)
    title = f"GPU memory over {plural(len(log), 'cell')}"
    if empty := len({i for cell in log for i in cell.devices}) - len(plot.panels):
        title += f"; {plural(empty, 'unchanged GPU')} left out"
    show_plot(magics.shell, plot, title, "%gpumem plot", options)
    return store(magics.shell, plot.figure, options)


def _free(magics: MagicState, options: NamesOptions, local_ns: Mapping[str, Any] | None) -> Freed:
    names = ",".join(options.names).replace(",", " ").split()
    own = () if local_ns is None or local_ns is magics.shell.user_ns else local_ns
    return free(magics.shell, names, own)


def _limit(_: MagicState, options: LimitOptions) -> Result:
    if options.size == 0:
        LIMIT.lift()
    elif options.size is not None:
        LIMIT.set(options.size)
    return LIMIT.state()


def _record(magics: MagicState, options: RecordOptions) -> Result:
    if magics.memory_history is None:
        magics.memory_history = history.History()
        magics.undo.callback(magics.memory_history.release)
    record = magics.memory_history
    return {"on": record.on, "off": record.off, None: record.state}[options.switch]()


#: By verb what it does, and returns to be shown.
_RESULTS: dict[str, Callable[[MagicState, Any], Result]] = {
    "log": lambda magics, _: _meter(magics).log(),
    "vars": lambda magics, _: holders(shell=magics.shell),
    "limit": _limit,
    "record": _record,
    "cells": lambda magics, _: history.live_by_cell(magics.shell),
    "snapshot": lambda _, options: history.write_snapshot(output_path(options.file)),
}
