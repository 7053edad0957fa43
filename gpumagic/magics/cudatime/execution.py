"""Run compiled code for ``%cudatime``: once, repeatedly or on several devices; show the result."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from gpumagic.cells.compile import CompiledCell
from gpumagic.cells.coroutines import run_or_await
from gpumagic.cells.timeit_loop import Loop
from gpumagic.magics import terminal
from gpumagic.magics.baseline import TIMES, Baseline
from gpumagic.magics.cudatime import flops_and_energy, lines
from gpumagic.magics.cudatime.delivery import Delivery, print_failure
from gpumagic.magics.cudatime.profiling import ProfiledRun, nvtx_range
from gpumagic.magics.output import Progress
from gpumagic.results import CudaTiming
from gpumagic.timing.benchmark import Benchmark
from gpumagic.timing.compilations import CompilationRecord
from gpumagic.timing.host_speed import HostSpeed
from gpumagic.timing.lines import LineProfiler
from gpumagic.timing.plan import Plan
from gpumagic.timing.regression import enough_repeats
from gpumagic.timing.run import Stopwatch, summarize, without_unseen_work


def run(delivery: Delivery, code: CompiledCell | Loop, plan: Plan | None) -> Any:
    """Run and time the code, and return what the magic returns; a coroutine if the code awaits.

    Raises:
        SpecError: the options do not fit.
    """
    __tracebackhide__ = True
    if isinstance(code, CompiledCell):
        return _run_once(delivery, code)
    assert plan is not None
    if delivery.options.on is not None:
        from gpumagic.magics.cudatime import device_comparison

        return device_comparison.run(delivery, code, plan)
    return _run_repeatedly(delivery, code, plan)


def _run_once(delivery: Delivery, cell: CompiledCell) -> Any:
    __tracebackhide__ = True
    line_profiler = lines.profiler(delivery.options, cell)
    profiled = ProfiledRun(delivery)
    baseline, _ = _baseline(delivery, None)
    scope = _SingleRun(delivery, cell.compile_time, line_profiler)

    async def run() -> Any:
        __tracebackhide__ = True
        try:
            value = await cell.run(scope)
        finally:
            scope.close()  # an interrupt may come before the scope's exit has begun
        value = await profiled.run(cell.run, value)
        value = await flops_and_energy.count_flops(delivery, cell.run, value)
        baseline.finish(delivery.shell, delivery.result)
        if not delivery.options.output:
            return value
        if value is not None:
            from IPython.display import display

            display(value)  # type: ignore[no-untyped-call]
        return delivery.result

    return run_or_await(run, is_async=cell.is_async)


def _baseline(delivery: Delivery, plan: Plan | None) -> tuple[Baseline, Plan | None]:
    """Return the files of the cell, and the plan with what comparing takes.

    That is enough repeats, and the host's speed beside them.
    """
    options = delivery.options
    baseline = Baseline(delivery.shell, options, TIMES)
    if options.fail_above is not None and isinstance(baseline.before, CudaTiming):
        plan = enough_repeats(plan, baseline.before)
    if plan is not None:
        plan = replace(plan, host_speed=_for_comparison(options))
    return baseline, plan


def _for_comparison(options: argparse.Namespace) -> bool:
    return options.save is not None or options.against is not None


def _run_repeatedly(delivery: Delivery, loop: Loop, plan: Plan) -> Any:
    __tracebackhide__ = True
    profiled = ProfiledRun(delivery)
    baseline, least = _baseline(delivery, plan)
    plan = least or plan
    progress = Progress(delivery.shell, enabled=not delivery.options.quiet)
    benchmark = Benchmark(loop, plan, lambda part: progress.update(part, benchmark.median))
    nvtx = nvtx_range(delivery.options)

    async def run() -> Any:
        __tracebackhide__ = True
        complete = False
        try:
            with nvtx:
                await benchmark.run()
            complete = True
        finally:
            with print_failure():
                progress.close()
                result = benchmark.result(loop.compile_time, partial=not complete)
                delivery.deliver_repeats(result)
        await profiled.run(lambda profiler: loop.run(1, profiler), None)
        await flops_and_energy.count_flops(delivery, lambda counter: loop.run(1, counter), None)
        await flops_and_energy.measure_energy(delivery, loop)
        baseline.finish(delivery.shell, delivery.result)
        return delivery.returned

    return run_or_await(run, is_async=loop.is_async)


class _SingleRun(AbstractContextManager[None]):
    """Times a block and shows the result at its end, also after an exception."""

    def __init__(
        self,
        delivery: Delivery,
        compile_time: float,
        profiler: LineProfiler | lines.NoLines,
    ) -> None:
        self._delivery = delivery
        self._compile_time = compile_time
        self._lines = profiler
        self._range = nvtx_range(delivery.options)
        self._stopwatch = Stopwatch()
        self._compiled = CompilationRecord()
        self._host_speed = HostSpeed(wanted=_for_comparison(delivery.options))

    def __enter__(self) -> None:
        __tracebackhide__ = True
        self._range.__enter__()
        try:
            self._lines.prepare()
            self._host_speed.measure()
            self._stopwatch.start()
            self._lines.start()
        except KeyboardInterrupt as interrupt:
            self._lines.close()
            self._range.__exit__(None, None, None)
            if not self._delivery.options.quiet:
                terminal.write_line(
                    "%cudatime: interrupted while waiting for earlier GPU work; nothing was run"
                )
            raise interrupt.with_traceback(None) from None

    def close(self) -> None:
        """End the tracing, also again; and free the events."""
        try:
            self._stopwatch.release()
        finally:
            self._lines.close()
            self._lines.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        __tracebackhide__ = True
        interrupt: KeyboardInterrupt | None = None
        try:
            with print_failure():
                self._lines.stop(failed=kind is not None)
                try:
                    run = self._stopwatch.stop()
                except KeyboardInterrupt as again:
                    interrupt, run = again, self._stopwatch.give_up()
                finally:
                    self._lines.close(error)
                partial = kind is not None or interrupt is not None
                if not partial:
                    self._host_speed.measure()
                result = summarize(
                    [run],
                    compile_time=self._compile_time,
                    partial=partial,
                    compiled=self._compiled,
                    host_speed=self._host_speed.sample,
                )
                # Lines may show work that left no sign outside.
                self._delivery.deliver(without_unseen_work(self._lines.result(result)))
        finally:
            self._lines.close(error)  # also after a second interrupt
            self._range.__exit__(None, None, None)
        if interrupt is not None:
            raise interrupt.with_traceback(None)  # the frames are gpumagic's, not the cell's
