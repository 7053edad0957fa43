"""Run compiled code for ``%cudatime``, once or repeatedly, and show the result at the end."""

from __future__ import annotations

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


def run(delivery: Delivery, code: CompiledCell | Loop, plan: Plan) -> Any:
    """Run and time code: a cell once, a loop repeatedly; return what the magic returns.

    Of a cell that awaits, return a coroutine that does.

    Raises:
        SpecError: a file cannot be read or written, or there is no such function.
    """
    options, further = delivery.options, FurtherRuns(delivery)
    baseline = _baseline(delivery, code, plan)
    once = None if isinstance(code, Loop) else _SingleRun(delivery, code)

    async def again(scope: AbstractContextManager[Any]) -> Any:
        return code.run(1, scope) if isinstance(code, Loop) else await code.run(scope)

    async def timed() -> Any:
        value = None
        try:
            with nullcontext() if options.nvtx is None else nvtx_range(options.nvtx):
                if once is not None:
                    with closing(once):  # an interrupt may come before its exit has begun
                        value = await again(once)
                elif isinstance(code, Loop):
                    _repeat(delivery, code, plan)
            value = await further.run(again, value)
            if isinstance(code, Loop):
                await further.measure_energy(code)
        finally:
            delivery.deliver()
        baseline.finish(delivery.result)
        return value_of(value, delivery.result, options)

    if isinstance(code, Loop):
        return run_sync(timed())
    return run_or_await(timed, code.globals, is_async=code.is_async)


def _baseline(delivery: Delivery, code: CompiledCell | Loop, plan: Plan) -> Baseline[CudaTiming]:
    """Return the files to save to, and to compare with.

    Raises:
        SpecError: there will be too few repeats for ``--fail-above``, or there are in the file.
    """
    baseline = Baseline(delivery.shell, delivery.options, CudaTiming)
    few = not isinstance(code, Loop) or (not plan.open_end and plan.repeats < LEAST_REPEATS)
    if baseline.before is not None:
        few = few or baseline.before.repeat < LEAST_REPEATS
    if few and delivery.options.fail_above is not None:
        raise SpecError(
            "--fail-above: fewer repeats cannot tell a slowdown from noise; save and compare with "
            f"-r {LEAST_REPEATS} or more, or --repeat"
        )
    return baseline


def _repeat(delivery: Delivery, loop: Loop, plan: Plan) -> None:
    quiet = delivery.options.quiet
    try:
        with closing(Progress(delivery.shell, enabled=not quiet)) as progress:
            delivery.benchmark(loop, plan, progress.update)
    finally:
        if delivery.result is None and not quiet:
            say(delivery.shell, "%cudatime: stopped before the first repeat was complete")


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
