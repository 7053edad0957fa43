"""Repeated runs for ``%cudatime``, with their progress."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from gpumagic.cells.timeit_loop import Loop
from gpumagic.magics.cudatime.cudatime_options import RunOptions
from gpumagic.magics.cudatime.timing_outcome import TimingOutcome
from gpumagic.magics.delivery import saying_failures
from gpumagic.magics.live_display import LiveDisplay
from gpumagic.magics.magic_state import MagicState
from gpumagic.magics.option_forms import Options
from gpumagic.render.units import seconds, share
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.timing.profiler import nvtx_range
from gpumagic.timing.repeated.benchmark import Runs, benchmark
from gpumagic.timing.repeated.repeat_plan import Plan

#: Seconds before the progress is shown, and between two updates.
_SILENT, _PERIOD = 1.0, 0.2
#: Why a cell that runs once may fail when it is repeated.
_OWN_VARIABLES = "; in repeated runs the variables that a cell assigns are its own, as in %%timeit"


def run(magics: MagicState, options: RunOptions, loop: Loop, plan: Plan) -> Any:
    """Run and time a loop repeatedly, and return what the magic returns.

    Raises:
        SpecError: a file cannot be read or written.
    """
    outcome = TimingOutcome(magics, options, None if plan.open_end else plan.repeats)

    def keep(timing: CudaTiming) -> None:
        outcome.result = timing

    try:
        with nvtx_range(options.nvtx):
            benchmark_shown(magics, options, loop, plan, keep)
        outcome.code_ended = True
        outcome.run_again(lambda scope: loop.run(1, scope))
        outcome.measure_energy(loop)
    finally:
        if outcome.result is None and not outcome.code_ended:
            why = _OWN_VARIABLES if sys.exc_info()[0] is UnboundLocalError else ""
            outcome.say(f"%cudatime: stopped before the first repeat was complete{why}")
        outcome.deliver()
        value = outcome.finish(None)  # after an interrupt, too: the timed runs may be complete
    return value


def benchmark_shown(
    magics: MagicState, options: Options, loop: Loop, plan: Plan, keep: Callable[[CudaTiming], None]
) -> None:
    """Run a loop, with its progress, and ``keep`` its timing: partial, if it is not complete.

    Nothing is kept before one repeat is complete.
    """
    began, done = perf_counter(), None
    shown_at = began + _SILENT - _PERIOD
    # In a terminal apart from the output of the timed code.
    with LiveDisplay(magics.shell, quiet=options.quiet, stream=sys.stderr) as live:

        def note(runs: Runs) -> None:
            nonlocal done, shown_at
            done = runs
            if (now := perf_counter()) >= shown_at + _PERIOD:
                shown_at = now
                live.text(f"%cudatime: {share(min(runs.part, 1.0))}, {seconds(now - began)}")

        try:
            done = benchmark(loop, plan, note)
        finally:
            if done is not None:
                with saying_failures(magics.shell):
                    keep(done.result())
