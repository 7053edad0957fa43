"""The verbs of ``%gpumem``: the report of something else, or a line after every cell."""

from __future__ import annotations

import argparse
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.delivery import hand_over, say, show_below, show_picture, store
from gpumagic.magics.shell_state import Magics, ShellState
from gpumagic.memory import history
from gpumagic.memory.limit import LIMIT
from gpumagic.memory.peak_ledger import CellMemoryMeter
from gpumagic.results.base import Result
from gpumagic.results.logs import CellLog
from gpumagic.system.shell import Shell
from gpumagic.system.writing import output_path
from gpumagic.wording import plural

_MESSAGES = {
    "on": "A line with the change follows each cell that changed GPU memory; '%gpumem off' ends "
    "that.",
    "off": "No more lines after cells; '%gpumem log' shows the previous ones.",
}


def run(
    verb: str, magics: Magics, options: argparse.Namespace, local_ns: dict[str, Any] | None = None
) -> Any:
    """Run the verb; ``local_ns`` has the caller's own variables.

    Raises:
        DeviceError: torch or a GPU is missing, CUDA is not in use or has failed, or the allocator
            cannot do it.
        SpecError: the file cannot be written, a variable that is to be freed does not exist, or
            there is nothing to draw.
    """
    shell, ledger = magics.shell, _ledger(magics.state)
    if verb == "plot":
        return _plot(shell, ledger.log(), options)
    if verb not in _MESSAGES:
        return hand_over(shell, _result(verb, magics, options, local_ns), options)
    if verb == "on":
        ledger.on()
    else:
        ledger.off()
    if not options.quiet:
        say(shell, _MESSAGES[verb])
    return store(shell, ledger.log(), options)


def _result(
    verb: str, magics: Magics, options: argparse.Namespace, local_ns: dict[str, Any] | None
) -> Result:
    """Do what a verb says, and return what it shows."""
    shell = magics.shell
    if verb == "log":
        return _ledger(magics.state).log()
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
        record = _history(magics.state)
        return {"on": record.on, "off": record.off, None: record.state}[options.switch]()
    if options.size == 0:
        LIMIT.lift()
    elif options.size is not None:
        LIMIT.set(options.size)
    return LIMIT.state()


def _ledger(state: ShellState) -> CellMemoryMeter:
    """Return the records of a session's cells, made at the first call."""
    if state.cell_memory is None:
        shell = state.shell
        state.cell_memory = CellMemoryMeter(state.hooks, lambda cell, _: show_below(shell, cell))
        state.undo.callback(state.cell_memory.off)
    return state.cell_memory


def _history(state: ShellState) -> history.History:
    if state.memory_history is None:
        state.memory_history = history.History()
        state.undo.callback(state.memory_history.release)
    return state.memory_history


def _plot(shell: Shell, log: CellLog, options: argparse.Namespace) -> Any:
    if not any(cell.devices for cell in log):
        raise SpecError("no cell has used GPU memory yet; '%gpumem on' begins to record them")
    plot = log.plot()
    title = f"GPU memory over {plural(len(log), 'cell')}"
    if empty := len(log.known_devices()) - len(log.drawn_devices()):
        title += f"; {plural(empty, 'unchanged GPU')} left out"
    show_picture(shell, plot, title, options.file, "%gpumem plot", quiet=options.quiet)
    return store(shell, plot.figure, options)
