"""Run compiled code for ``%cudatime``, once or repeatedly, and show the result at the end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from gpumagic.cells.compile import CompiledCell
from gpumagic.cells.line_sources import selected_sources
from gpumagic.cells.timeit_loop import Loop
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime.further_runs import FurtherRuns
from gpumagic.magics.delivery import Delivery, saying_failures
from gpumagic.magics.output import Progress, say
from gpumagic.magics.shell_state import Magics
from gpumagic.results.timing import CudaTiming
from gpumagic.timing.benchmark import Benchmark
from gpumagic.timing.event_timer import (
    Started,
    gave_up,
    read,
    start,
    stop,
    wait_for_earlier_work,
)
from gpumagic.timing.lines import LineProfiler
from gpumagic.timing.profiler import nvtx_range
from gpumagic.timing.repeat_plan import LEAST_REPEATS, Plan
from gpumagic.timing.summary import (
    INTERRUPTED,
    STOPPED_EARLY,
    compiled_frames,
    counted,
    summarize,
)

#: Why a cell that runs once may fail when it is repeated.
_OWN_VARIABLES = "; in repeated runs the variables that a cell assigns are its own, as in %%timeit"


class _Timed(Delivery):
    """The result of ``%cudatime``. ``repeats`` is their number, None where not known before.

    Raises:
        SpecError: a file cannot be read or written, or too few repeats for ``--fail-above``.
    """

    def __init__(self, magics: Magics, options: argparse.Namespace, repeats: int | None) -> None:
        super().__init__(magics, options, CudaTiming)
        self._session = magics.state
        counts = (repeats, None if self.before is None else self.before.repeat)
        few = any(count is not None and count < LEAST_REPEATS for count in counts)
        if few and options.fail_above is not None:
            raise SpecError(
                "--fail-above: fewer repeats cannot tell a slowdown from noise; save and compare "
                f"with -r {LEAST_REPEATS} or more, or --repeat"
            )

    def deliver(self) -> None:
        if self.result is not None:
            self._session.note_timing(self.options.name, self.result)
        super().deliver()


@contextmanager
def nothing_has_run(delivery: Delivery) -> Iterator[None]:
    """Say so where an interrupt comes before the user's code, which is not blamed for it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not delivery.options.quiet:
            waited = "interrupted while waiting for earlier GPU work"
            say(delivery.shell, f"%cudatime: {waited}; nothing was run")
        raise interrupt.with_traceback(None) from None


# --- once -----------------------------------------------------------------------------------------


def run_once(magics: Magics, options: argparse.Namespace, cell: CompiledCell) -> Any:
    """Run and time a cell, and return what the magic returns; a coroutine if the cell awaits.

    Raises:
        SpecError: a file cannot be read or written, or there is no such function.
    """
    delivery = _Timed(magics, options, repeats=1)
    further = FurtherRuns(delivery)
    single = _SingleRun(delivery, cell)

    @contextmanager
    def timed() -> Iterator[None]:
        try:
            # `close`: an interrupt may come before the end of the run has begun.
            with nvtx_range(options.nvtx), closing(single), single:
                yield
        except BaseException:
            delivery.deliver()
            raise

    def finish(value: object) -> Any:
        try:
            value = further.run(cell.run, value)
        finally:
            delivery.deliver()
        return delivery.finish(value)

    return cell.run_within(timed(), finish)


class _SingleRun(AbstractContextManager[None]):
    """Times a block; the result is there at its end, also after an exception."""

    def __init__(self, delivery: Delivery, cell: CompiledCell) -> None:
        self._delivery = delivery
        self._compile_time = cell.compile_time
        self._lines: LineProfiler | None = None
        if delivery.options.lines:
            self._lines = LineProfiler(selected_sources(cell, delivery.options.functions))
        self._started: Started | None = None

    def __enter__(self) -> None:
        self._frames_before = compiled_frames()
        with nothing_has_run(self._delivery):
            if self._lines is not None:
                self._lines.prepare()
            self._started = start()
            if self._lines is not None:
                self._lines.start()

    def close(self) -> None:
        """End the tracing, also where an interrupt came before that; and free the events."""
        self._started = None
        if self._lines is not None:
            self._lines.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._started is not None
        interrupt: KeyboardInterrupt | None = None
        with saying_failures(self._delivery.shell):
            if self._lines is not None:
                self._lines.stop(failed=kind is not None)
            stopped = stop(self._started)
            ended = () if kind is None else (STOPPED_EARLY,)
            try:
                times = read(stopped)
            except KeyboardInterrupt as again:
                interrupt, times = again, gave_up(stopped, INTERRUPTED)
            result = summarize(
                [times],
                compile_time=self._compile_time,
                partial=kind is not None or interrupt is not None,
                notes=counted(compiled_frames() - self._frames_before) + ended,
            )
            if self._lines is not None:  # they may show work that left no sign outside
                result = self._lines.result(result)
            self._delivery.keep(result)
        if interrupt is not None:
            raise interrupt.with_traceback(None)  # the frames are gpumagic's, not the cell's


# --- repeatedly -----------------------------------------------------------------------------------


def run_repeatedly(magics: Magics, options: argparse.Namespace, loop: Loop, plan: Plan) -> Any:
    """Run and time a loop, and return what the magic returns.

    Raises:
        SpecError: a file cannot be read or written.
    """
    delivery = _Timed(magics, options, None if plan.open_end else plan.repeats)
    further = FurtherRuns(delivery)
    with nothing_has_run(delivery):
        wait_for_earlier_work()
    try:
        with nvtx_range(options.nvtx):
            benchmark(delivery, loop, plan, delivery.keep)
        further.run(lambda scope: loop.run(1, scope), None)
        further.measure_energy(loop)
    finally:
        if delivery.result is None and not options.quiet:
            why = _OWN_VARIABLES if sys.exc_info()[0] is UnboundLocalError else ""
            say(delivery.shell, f"%cudatime: stopped before the first repeat was complete{why}")
        delivery.deliver()
    return delivery.finish(None)


def benchmark(
    delivery: Delivery, loop: Loop, plan: Plan, keep: Callable[[CudaTiming | None], None]
) -> None:
    """Run a loop and ``keep`` its timing: also a partial one, if one repeat is complete."""
    progress = Progress(delivery.shell, enabled=not delivery.options.quiet)
    with closing(progress):
        running = Benchmark(loop, plan, progress.update)
        is_complete = False
        try:
            running.run()
            is_complete = True
        finally:
            with saying_failures(delivery.shell):
                keep(running.result(loop.compile_time, partial=not is_complete))
