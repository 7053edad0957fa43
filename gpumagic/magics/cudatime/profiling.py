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
from gpumagic.magics.file_names import expanded
from gpumagic.magics.output import show
from gpumagic.timing.profiler import NvtxRange, Profiled, check_trace

_T = TypeVar("_T")


class ProfiledRun:
    """Runs the code once more under the profiler, after it was timed, if the options ask for it.

    Raises:
        SpecError: the trace cannot be written to that file.
    """

    def __init__(self, delivery: Delivery) -> None:
        options = delivery.options
        self._delivery = delivery
        self.is_wanted = options.kernels or options.trace is not None
        self._trace: Path | None = None
        if options.trace is not None:
            self._trace = check_trace(expanded(delivery.shell, options.trace))

    async def run(
        self, code: Callable[[AbstractContextManager[Any]], Awaitable[_T]], value: _T
    ) -> _T:
        """Run ``code`` in the profiler's scope and return its value; ``value`` if it is not run."""
        __tracebackhide__ = True
        if not self.is_wanted or self._delivery.result is None:
            return value  # a timing that failed has been reported
        profiled = Profiled(self._trace)
        if profiled.problem is None:
            option = "--kernels" if self._delivery.options.kernels else "--trace"
            value, problem = await further_run.attempt(
                self._delivery, option, lambda: code(profiled), value
            )
            if problem is not None:
                profiled.problem = f"no profile: {problem}"
        report, quiet = profiled.report, self._delivery.options.quiet
        if report is None:
            problem = profiled.problem or "no profile"
            self._delivery.add(problem)
            if not quiet:
                terminal.write_line(f"%cudatime: {problem}")
            return value
        with print_failure("the kernels"):
            self._delivery.add(kernels=report)
            if not quiet:
                show(self._delivery.shell, report)
        return value


def nvtx_range(options: argparse.Namespace) -> AbstractContextManager[Any]:
    """Return the range that ``--nvtx`` asks for; without it, a scope that does nothing."""
    if options.nvtx is None:
        return nullcontext()
    made = NvtxRange(options.nvtx)
    if made.problem is not None and not options.quiet:
        terminal.write_line(f"%cudatime: {made.problem}")
    return made
