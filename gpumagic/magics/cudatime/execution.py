"""Run compiled code for ``%cudatime``, once or repeatedly, and show the result at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

from gpumagic.cells.compile import CompiledCell
from gpumagic.cells.coroutines import run_or_await, run_sync
from gpumagic.cells.line_sources import selected_sources
from gpumagic.cells.timeit_loop import Loop
from gpumagic.errors import SpecError
from gpumagic.magics.baseline import Baseline
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.magics.cudatime.further_runs import FurtherRuns
from gpumagic.magics.output import Progress, say, value_of
from gpumagic.results.timing import CudaTiming
from gpumagic.timing.event_timer import Started, gave_up, read, start, stop
from gpumagic.timing.lines import LineProfiler
from gpumagic.timing.plan import LEAST_REPEATS, Plan
from gpumagic.timing.profiler import nvtx_range
from gpumagic.timing.run import INTERRUPTED, compiled_frames, counted, summarize


def _baseline(delivery: Delivery, repeats: int | None) -> Baseline[CudaTiming]:
    """Return the files of a cell with so many repeats; None where that is not known.

    Raises:
        SpecError: there will be too few repeats for ``--fail-above``, or there are in the file.
    """
    baseline = Baseline(delivery.shell, delivery.options, CudaTiming)
    few = repeats is not None and repeats < LEAST_REPEATS
    if baseline.before is not None:
        few = few or baseline.before.repeat < LEAST_REPEATS
    if few and delivery.options.fail_above is not None:
        raise SpecError(
            "--fail-above: fewer repeats cannot tell a slowdown from noise; save and compare with "
            f"-r {LEAST_REPEATS} or more, or --repeat"
        )
    return baseline


def _timed(
    delivery: Delivery,
    repeats: int | None,
    measure: Callable[[], Awaitable[Any]],
    again: Callable[[AbstractContextManager[Any]], Awaitable[Any]],
    loop: Loop | None = None,
) -> Callable[[], Coroutine[Any, Any, Any]]:
    """Return what runs code, and returns what the magic returns.

    ``measure`` sets the delivery's result, and ``again`` runs the code once more, in a scope. Both
    return the code's value.

    Raises:
        SpecError: a file cannot be read or written.
    """
    options = delivery.options
    further = FurtherRuns(delivery)
    baseline = _baseline(delivery, repeats)

    async def run() -> Any:
        try:
            with nullcontext() if options.nvtx is None else nvtx_range(options.nvtx):
                value = await measure()
            value = await further.run(again, value)
            if loop is not None:
                await further.measure_energy(loop)
        finally:
            delivery.deliver()
        baseline.finish(delivery.result)
        return value_of(value, delivery.result, options)

    return run


def run_once(delivery: Delivery, cell: CompiledCell) -> Any:
    """Run and time a cell, and return what the magic returns; a coroutine if the cell awaits.

    Raises:
        SpecError: a file cannot be read or written, or there is no such function.
    """
    scope = _SingleRun(delivery, cell)

    async def measure() -> Any:
        try:
            return await cell.run(scope)
        finally:
            scope.close()  # an interrupt may come before the scope's exit has begun

    timed = _timed(delivery, 1, measure, cell.run)
    return run_or_await(timed, cell.globals, is_async=cell.is_async)


def run_repeatedly(delivery: Delivery, loop: Loop, plan: Plan) -> Any:
    """Run and time a loop, and return what the magic returns.

    Raises:
        SpecError: a file cannot be read or written.
    """
    quiet = delivery.options.quiet

    async def measure() -> None:
        try:
            with closing(Progress(delivery.shell, enabled=not quiet)) as progress:
                delivery.benchmark(loop, plan, progress.update)
        finally:
            if delivery.result is None and not quiet:
                say(delivery.shell, "%cudatime: stopped before the first repeat was complete")

    async def again(scope: AbstractContextManager[Any]) -> None:
        loop.run(1, scope)

    repeats = None if plan.open_end else plan.repeats
    return run_sync(_timed(delivery, repeats, measure, again, loop)())


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
        try:
            if self._lines is not None:
                self._lines.prepare()
            self._started = start()
            if self._lines is not None:
                self._lines.start()
        except KeyboardInterrupt as interrupt:
            if not self._delivery.options.quiet:
                say(
                    self._delivery.shell,
                    "%cudatime: interrupted while waiting for earlier GPU work; nothing was run",
                )
            raise interrupt.with_traceback(None) from None

    def close(self) -> None:
        """End the tracing, also where an interrupt came before that; and free the events."""
        self._started = None
        if self._lines is not None:
            self._lines.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._started is None:  # closed
            return
        interrupt: KeyboardInterrupt | None = None
        with self._delivery.saying_failures():
            if self._lines is not None:
                self._lines.stop(failed=kind is not None)
            stopped = stop(self._started)
            try:
                times = read(stopped)
            except KeyboardInterrupt as again:
                interrupt, times = again, gave_up(stopped, INTERRUPTED)
            result = summarize(
                [times],
                lines=self._lines is not None,
                compile_time=self._compile_time,
                partial=kind is not None or interrupt is not None,
                notes=counted(compiled_frames() - self._frames_before),
            )
            if self._lines is not None:  # they may show work that left no sign outside
                result = self._lines.result(result)
            self._delivery.result = result
        if interrupt is not None:
            raise interrupt.with_traceback(None)  # the frames are gpumagic's, not the cell's
