"""``%%cudatime --kernels``, ``--trace`` and ``--nvtx``: the profiler, and a range for Nsight."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from gpumagic.magics import terminal
from gpumagic.magics.cudatime import further_run
from gpumagic.magics.cudatime.delivery import Delivery, print_failure
from gpumagic.magics.cudatime.lines import NoLines
from gpumagic.magics.file_names import expanded
from gpumagic.magics.output import show
from gpumagic.results import CudaTiming, KernelReport
from gpumagic.timing.line_profiler import LineProfiler, with_kernels, without_kernels
from gpumagic.timing.profiler import NvtxRange, Profiled, check_trace

_T = TypeVar("_T")


class ProfiledRun:
    """Runs the code once more under the profiler, after it was timed, if the options ask for it.

    ``lines`` has measured its lines, which then get the time in which they kept the GPU busy.

    Raises:
        SpecError: the trace cannot be written to that file.
    """

    def __init__(self, delivery: Delivery, lines: LineProfiler | NoLines | None = None) -> None:
        options = delivery.options
        self._delivery = delivery
        self._lines = lines if isinstance(lines, LineProfiler) else None
        self.is_wanted = options.kernels or options.trace is not None
        self._trace: Path | None = None
        if options.trace is not None:
            self._trace = check_trace(expanded(delivery.shell, options.trace))

    def deliver(self, result: CudaTiming) -> None:
        """Deliver the timed run; with lines that are to get more, only after the second run."""
        if self.is_wanted and result.lines is not None and not result.partial:
            self._delivery.hold(result)
        else:
            self._delivery.deliver(result)

    async def run(
        self, code: Callable[[AbstractContextManager[Any]], Awaitable[_T]], value: _T
    ) -> _T:
        """Run ``code`` in the profiler's scope and return its value; ``value`` if it is not run."""
        __tracebackhide__ = True
        if not self.is_wanted or self._delivery.result is None:
            return value  # a timing that failed has been reported
        has_lines = self._lines is not None and self._delivery.is_held
        log = self._lines.log() if self._lines is not None and has_lines else None
        profiled = Profiled(self._trace, log)
        try:
            if profiled.problem is None:
                option = "--kernels" if self._delivery.options.kernels else "--trace"
                value, problem = await further_run.attempt(
                    self._delivery, option, lambda: code(profiled), value
                )
                if problem is not None:
                    profiled.problem = f"no profile: {problem}"
                if profiled.report is not None:
                    with print_failure("the kernels"):
                        self._add(profiled, profiled.report)
            if profiled.report is None:
                self._give_up(profiled.problem or "no profile")
        finally:
            with print_failure():
                self._delivery.release()
        report, quiet = profiled.report, self._delivery.options.quiet
        # The lines say why there are no kernels.
        if report is not None and not quiet and (report.visible or report.trace or not has_lines):
            with print_failure("the kernels"):
                show(self._delivery.shell, report)
        return value

    def _add(self, profiled: Profiled, report: KernelReport) -> None:
        """Add the kernels to the result, and to its lines."""
        self._delivery.add(kernels=report)
        result = self._delivery.result
        if result is None or not self._delivery.is_held:
            return
        if profiled.by_line is not None:
            result = with_kernels(result, profiled.by_line)
        elif profiled.lines_note is not None:
            result = without_kernels(result, profiled.lines_note)
        self._delivery.hold(result)

    def _give_up(self, problem: str) -> None:
        """Print why there is no profile, and note it in the result."""
        self._delivery.add(problem)
        if not (self._delivery.options.quiet or self._delivery.is_held):  # then the result says it
            terminal.write_line(f"%cudatime: {problem}")


def nvtx_range(options: argparse.Namespace) -> AbstractContextManager[Any]:
    """Return the range that ``--nvtx`` asks for; without it, a scope that does nothing."""
    if options.nvtx is None:
        return nullcontext()
    made = NvtxRange(options.nvtx)
    if made.problem is not None and not options.quiet:
        terminal.write_line(f"%cudatime: {made.problem}")
    return made
