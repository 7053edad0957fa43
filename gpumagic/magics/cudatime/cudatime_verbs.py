"""``%cudatime on``, ``off`` and ``log``: the times of every cell of the session."""

from __future__ import annotations

import argparse
import re
from typing import Any

from gpumagic.magics.output import hand_over, say, show_below, store
from gpumagic.magics.shell_state import Magics
from gpumagic.magics.shell_state import of as state_of
from gpumagic.results.logs import CellTiming
from gpumagic.system.shell import Shell
from gpumagic.timing.cell_timer import CellTimer

_OWN = re.compile(r"\s*%cudatime\s+(-\S+\s+)*(on|off|log)\b[^\n]*\s*")
#: Cells that have shown their times themselves.
_TIMED = re.compile(r"\s*%%cudatime\b|\s*%cudatime\b[^\n]*\s*\Z")


def run(verb: str, magics: Magics, options: argparse.Namespace) -> Any:
    """Run the verb."""
    shell, timer = magics.shell, cell_timer(magics.shell)
    if verb == "log":
        log = timer.log()
        metadata = {"gpumagic": {"cudatime_log": log.to_dict()["cells"]}}
        return hand_over(shell, log, options, metadata)
    if verb == "on":
        timer.on(options.above)
        message = (
            "A line with the times follows each cell with a sign of GPU work, or longer than "
            f"{options.above:g} s; '%cudatime off' ends that."
        )
    else:
        timer.off()
        message = "No more lines after cells; '%cudatime log' sums up those before."
    if not options.quiet:
        say(shell, message)
    return store(shell, timer.log(), options)


def cell_timer(shell: Shell) -> CellTimer:
    """Return the timer of a shell's cells; make it when first needed."""
    state = state_of(shell)
    if state.cell_timing is None:
        state.cell_timing = CellTimer(
            state.hooks,
            show=lambda cell, source: _show(shell, cell, source),
            includes=lambda source: _OWN.fullmatch(source) is None,
        )
        state.undo.callback(state.cell_timing.off)
    return state.cell_timing


def _show(shell: Shell, cell: CellTiming, source: str) -> None:
    """Show the line of a cell that has not shown its times itself; the metadata has them too."""
    if not _TIMED.match(source):
        show_below(shell, cell, metadata={"gpumagic": {"cudatime": cell.to_dict()}})
