"""``%%cudatime --kernels``, ``--trace`` and ``--nvtx``: what other tools see of the cell."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gpumagic.cells.cancellation import awaited
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.magics.output import show
from gpumagic.magics.parsing import Parser
from gpumagic.system.text import named
from gpumagic.timing.profiler import NvtxRange, Profiled, check_trace


def add_options(parser: Parser) -> None:
    """``--kernels``, ``--trace`` and ``--nvtx``."""
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


class OnceMore:
    """The code once more, under the profiler, after it was timed.

    Raises:
        SpecError: the trace cannot be written there.
    """

    def __init__(self, delivery: Delivery) -> None:
        options = delivery.options
        self._delivery = delivery
        self.wanted = options.kernels or options.trace is not None
        self._trace = None if options.trace is None else check_trace(options.trace)

    def after(
        self,
        timed: Callable[[], Any],
        again: Callable[[AbstractContextManager[Any]], Any],
        finish: Callable[[Any], Any],
        *,
        is_async: bool,
    ) -> Any:
        """Run ``timed``, then ``again`` in the profiler's scope; ``finish`` of the last's value.

        A coroutine that does so if ``is_async``.
        """
        __tracebackhide__ = True
        if is_async:

            async def go() -> Any:
                __tracebackhide__ = True
                with awaited():
                    value = await timed()
                    profiled = self._begin()
                    if profiled is not None:
                        value = await again(profiled)
                        self._end(profiled)
                return finish(value)

            return go()
        value = timed()
        profiled = self._begin()
        if profiled is not None:
            value = again(profiled)
            self._end(profiled)
        return finish(value)

    def _begin(self) -> Profiled | None:
        if self._delivery.result is None:
            return None  # the timing failed, and has said so
        profiled = Profiled(self._trace)
        if profiled.problem is None:
            return profiled
        self._give_up(profiled.problem)
        return None

    def _end(self, profiled: Profiled) -> None:
        report = profiled.report
        if report is None:
            self._give_up(profiled.problem or "no profile")
            return
        try:
            self._delivery.add(kernels=report)
            if not self._delivery.options.quiet:
                show(self._delivery.shell, report)
        except Exception as failure:  # the cell's value must pass, whatever becomes of ours
            self._say(f"cannot show the kernels ({named(failure)})")

    def _give_up(self, problem: str) -> None:
        """Say why there is no profile, in the result too."""
        result = self._delivery.result
        if result is not None:
            self._delivery.add(notes=(*result.notes, problem))
        self._say(problem)

    def _say(self, problem: str) -> None:
        if not self._delivery.options.quiet:
            print(f"%cudatime: {problem}")


def nvtx_range(options: argparse.Namespace) -> AbstractContextManager[Any]:
    """The range that ``--nvtx`` asks for; without it, nothing."""
    if options.nvtx is None:
        return nullcontext()
    made = NvtxRange(options.nvtx)
    if made.problem is not None and not options.quiet:
        print(f"%cudatime: {made.problem}")
    return made
