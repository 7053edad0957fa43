"""``%%cudatime --kernels``, ``--trace`` and ``--nvtx``: the profiler, and a range for Nsight."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from gpumagic.magics.cudatime.delivery import Delivery, print_failure
from gpumagic.magics.output import show
from gpumagic.magics.parsing import Parser
from gpumagic.results import KernelReport
from gpumagic.timing.profiler import NvtxRange, Profiled, check_trace

_T = TypeVar("_T")


def add_options(parser: Parser) -> None:
    """Add ``--kernels``, ``--trace`` and ``--nvtx``."""
    group = parser.add_argument_group("where the time goes")
    group.add_argument(
        "--kernels",
        action="store_true",
        help="run the code once more, under torch's profiler, and show its kernels by time",
    )
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="the same run's trace, for ui.perfetto.dev (.json or .json.gz)",
    )
    group.add_argument(
        "--nvtx", metavar="NAME", help="put an NVTX range around the timed run, for Nsight"
    )


class ProfiledRun:
    """Runs the code once more under the profiler, after it was timed, if the options ask for it.

    Raises:
        SpecError: the trace cannot be written to that file.
    """

    def __init__(self, delivery: Delivery) -> None:
        options = delivery.options
        self._delivery = delivery
        self._is_wanted = options.kernels or options.trace is not None
        self._trace = None if options.trace is None else check_trace(options.trace)

    async def run(
        self, code: Callable[[AbstractContextManager[Any]], Awaitable[_T]], value: _T
    ) -> _T:
        """Run ``code`` in the profiler's scope and return its value; ``value`` if it is not run."""
        __tracebackhide__ = True
        if not self._is_wanted or self._delivery.result is None:
            return value  # a timing that failed has been reported
        profiled = Profiled(self._trace)
        if profiled.problem is not None:
            self._give_up(profiled.problem)
            return value
        value = await code(profiled)
        if profiled.report is None:
            self._give_up(profiled.problem or "no profile")
        else:
            self._deliver(profiled.report)
        return value

    def _deliver(self, report: KernelReport) -> None:
        with print_failure("the kernels"):
            self._delivery.add(kernels=report)
            if not self._delivery.options.quiet:
                show(self._delivery.shell, report)

    def _give_up(self, problem: str) -> None:
        """Print why there is no profile, and note it in the result."""
        self._delivery.add(problem)
        if not self._delivery.options.quiet:
            print(f"%cudatime: {problem}")


def nvtx_range(options: argparse.Namespace) -> AbstractContextManager[Any]:
    """Return the range that ``--nvtx`` asks for; without it, a scope that does nothing."""
    if options.nvtx is None:
        return nullcontext()
    made = NvtxRange(options.nvtx)
    if made.problem is not None and not options.quiet:
        print(f"%cudatime: {made.problem}")
    return made
