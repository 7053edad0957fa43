"""The verbs of ``%cudatime``: the times of every cell of the session; named results."""

from __future__ import annotations

import shlex
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.cudatime.cudatime_options import OnOptions
from gpumagic.magics.delivery import hand_over, say, show_below, store
from gpumagic.magics.magic_state import MagicState
from gpumagic.magics.option_forms import NamesOptions, Options
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.timing.cell_timer import CellTimer
from gpumagic.timing.comparison import compare


def run(verb: str, magics: MagicState, options: Options) -> Any:
    """Run the verb.

    Raises:
        SpecError: there is no result of a name, or nothing to compare.
    """
    if isinstance(options, NamesOptions):
        return _of_named(verb, magics, options)
    timer = _timer(magics)
    if verb == "log":
        return hand_over(magics.shell, timer.log(), options)
    if isinstance(options, OnOptions):
        timer.on(options.above)
        message = (
            "A line with the times follows each cell with a sign of GPU work, or longer than "
            f"{options.above:g} s; '%cudatime off' ends that."
        )
    else:
        timer.off()
        message = "No more lines after cells; '%cudatime log' sums up those before."
    say(magics.shell, message, quiet=options.quiet)
    return store(magics.shell, timer.log(), options)


def _of_named(verb: str, magics: MagicState, options: NamesOptions) -> Any:
    """Show the named results, or those that the line names, side by side; or forget their names."""
    named: dict[str, CudaTiming] = magics.named_timings
    names = [name for word in options.names for name in word.split(",") if name] or [*named]
    there = ", ".join(map(shlex.quote, named)) or "none; %%cudatime --name NAME names one"
    for name in names:
        if name not in named:
            raise SpecError(f"%cudatime {verb}: no result is named {name!r}; there is {there}")
    if verb == "compare":
        if len({*names}) < 2:
            raise SpecError(f"%cudatime compare: it takes two named results; there is {there}")
        compared = compare({name: named[name] for name in names})
        return hand_over(magics.shell, compared, options)
    forgotten = {name: named.pop(name) for name in dict.fromkeys(names)}
    said = f"forgotten: {', '.join(map(shlex.quote, forgotten))}"
    say(magics.shell, said if forgotten else "there are no named results", quiet=options.quiet)
    return store(magics.shell, forgotten, options)


def _timer(magics: MagicState) -> CellTimer:
    """Return the timer of a session's cells, made at the first call."""
    if magics.cell_timing is None:
        shell = magics.shell
        magics.cell_timing = CellTimer(magics.hooks, lambda cell: show_below(shell, cell))
        magics.undo.callback(magics.cell_timing.off)
    return magics.cell_timing
