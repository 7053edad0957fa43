"""``%gpumem on``, ``off``, ``log`` and ``plot``: GPU memory over the cells of the session."""

from __future__ import annotations

import argparse
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import expanded
from gpumagic.magics.extension import of as extension_of
from gpumagic.magics.output import hand_over, say, show_below, show_picture, store
from gpumagic.memory.peak_ledger import CellLedger
from gpumagic.results.logs import CellLog
from gpumagic.system.text import plural

_MESSAGES = {
    "on": "A line with the change follows each cell that changed GPU memory; '%gpumem off' ends "
    "that.",
    "off": "No more lines after cells; '%gpumem log' shows the previous ones.",
}


def run(verb: str, magics: Any, options: argparse.Namespace) -> Any:
    """Run the verb.

    Raises:
        SpecError: there is nothing to show, or no way to draw it.
    """
    shell, ledger = magics.shell, of(magics.shell)
    if verb == "plot":
        return _plot(shell, ledger.log(), options)
    if verb == "log":
        return hand_over(shell, ledger.log(), options)
    if verb == "on":
        ledger.on()
    else:
        ledger.off()
    if not options.quiet:
        say(shell, _MESSAGES[verb])
    return store(shell, ledger.log(), options)


def of(shell: Any) -> CellLedger:
    """Return the records of a shell's cells, made at the first call."""
    extension = extension_of(shell)
    if extension.cell_memory is None:
        extension.cell_memory = CellLedger(extension.hooks, lambda cell, _: show_below(shell, cell))
    return extension.cell_memory


def _plot(shell: Any, log: CellLog, options: argparse.Namespace) -> Any:
    if not any(cell.devices for cell in log):
        raise SpecError("no cell has used GPU memory yet; '%gpumem on' begins to record them")
    plot = log.plot()
    title = f"GPU memory over {plural(len(log), 'cell')}"
    if empty := len(log.known_devices()) - len(log.drawn_devices()):
        title += f"; {plural(empty, 'unchanged GPU')} left out"
    file = expanded(shell, options.file or "")
    show_picture(shell, plot, title, file, "%gpumem plot", quiet=options.quiet)
    return store(shell, plot.figure, options)
