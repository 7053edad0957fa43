"""``%cudatime`` and ``%%cudatime``: GPU, wall and CPU time of code that runs once.

Where the line has a verb, or asks for repeated runs, another module goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import Any

from gpumagic.cells.compile import CompiledCell, compile_cell
from gpumagic.cells.line_sources import selected_sources
from gpumagic.cells.timeit_loop import compile_loop
from gpumagic.errors import SpecError
from gpumagic.magics.cudatime import cudatime_verbs, on_devices, repeated
from gpumagic.magics.cudatime.cudatime_options import AGAIN, REPEATING, RunOptions
from gpumagic.magics.cudatime.timing_outcome import TimingOutcome
from gpumagic.magics.delivery import saying_failures
from gpumagic.magics.magic_state import MagicState
from gpumagic.magics.parsing import MagicLine
from gpumagic.timing import compilation, event_timer, summary
from gpumagic.timing.event_timer import Started
from gpumagic.timing.lines.line_profiler import LineProfiler
from gpumagic.timing.profiler import nvtx_range
from gpumagic.timing.repeated.repeat_plan import Plan


def run(
    magics: MagicState, line: MagicLine, cell: str | None, local_ns: dict[str, Any] | None
) -> Any:
    """Run the magic; for code that awaits, return a coroutine that does.

    Raises:
        SpecError: the line does not fit, a file cannot be read or written, or there is no such
            function or device.
        DeviceError: torch, which ``--on`` needs, cannot be imported.
    """
    options = line.options
    if magics.cell_timing is not None:
        magics.cell_timing.note_call()
    if not isinstance(options, RunOptions):
        return cudatime_verbs.run(line.verb, magics, options)
    if cell is None and not line.code:
        raise SpecError("%cudatime: no statement to time. Help: %cudatime?")
    if options.cluster:
        from gpumagic.magics import cluster

        return cluster.run_cell(magics, "cudatime", line, cell)
    source = line.code if cell is None else cell
    # The magic's own line, by which tracebacks count a cell's lines.
    header = None if cell is None else f"%%cudatime {line.written}"
    if not REPEATING.isdisjoint(line.given):
        setup = options.setup or ""
        loop = compile_loop(magics.shell, source, header=header, local_ns=local_ns, setup=setup)
        plan = Plan(options.loops, options.repeats, options.warmup, options.max_time, options.cold)
        repeatedly = on_devices.run if options.on else repeated.run
        return repeatedly(magics, options, loop, plan)
    compiled = compile_cell(magics.shell, source, header=header, local_ns=local_ns)
    compiled.check_runs_again(*AGAIN & line.given.keys())
    return _run_once(TimingOutcome(magics, options, repeats=1), compiled)


def _run_once(outcome: TimingOutcome, cell: CompiledCell) -> Any:
    """Run and time a cell, and return what the magic returns; a coroutine if the cell awaits."""
    single = _SingleRun(outcome, cell)

    @contextmanager
    def timed() -> Iterator[None]:
        try:
            # `close`: an interrupt may come before the end of the run has begun.
            with nvtx_range(outcome.options.nvtx), closing(single), single:
                yield
        except BaseException:
            outcome.deliver()
            raise

    def finish(value: object) -> Any:
        try:
            value = outcome.run_again(cell.run, value)
        finally:
            outcome.deliver()
            value = outcome.finish(value)  # after an interrupt, too: the timed run is complete
        return value

    return cell.run_within(timed(), finish)


class _SingleRun(AbstractContextManager[None]):
    """Times a block; ``outcome`` has the result at its end, also after an exception."""

    def __init__(self, outcome: TimingOutcome, cell: CompiledCell) -> None:
        self._outcome, self._compile_time = outcome, cell.compile_time
        self._lines: LineProfiler | None = None
        if outcome.options.lines:
            self._lines = LineProfiler(selected_sources(cell, outcome.options.functions))
        self._started: Started | None = None

    def __enter__(self) -> None:
        self._compiled_before = compilation.compiled_functions()
        if self._lines is not None:
            self._lines.prepare()
        self._started = event_timer.start()
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
        self._outcome.code_ended = kind is None
        with saying_failures(self._outcome.shell):
            lines = self._lines
            if lines is not None:
                lines.stop(failed=kind is not None)
            stopped = event_timer.stop(self._started)
            times, interrupt = event_timer.read_or_give_up(stopped)
            if lines is not None:
                times = lines.refined(times)
            compiled = compilation.compiled_functions() - self._compiled_before
            timing = summary.summarize([times])
            timing = replace(
                timing,
                compile_time=self._compile_time,
                partial=interrupt is not None,
                notes=(*timing.notes, *compilation.counted(compiled)),
            )
            timing = timing if kind is None else summary.stopped_early(timing)
            self._outcome.result = timing if lines is None else lines.added_to(timing)
        if interrupt is not None:
            raise interrupt.with_traceback(None)  # the frames are gpumagic's, not the cell's
