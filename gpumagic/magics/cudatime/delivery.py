"""The result of one ``%cudatime`` in the making, shown and stored at the end."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gpumagic.cells.timeit_loop import Loop
from gpumagic.magics.output import hand_over, say
from gpumagic.results.timing import CudaTiming
from gpumagic.system import text
from gpumagic.timing.benchmark import Benchmark
from gpumagic.timing.plan import Plan


class Delivery:
    """Shows and stores the result of one line or cell as its options say."""

    def __init__(self, magics: Any, options: argparse.Namespace) -> None:
        self.magics = magics
        self.shell = magics.shell
        self.options = options
        #: None until there is a result.
        self.result: CudaTiming | None = None

    def add(self, *notes: str, **fields: Any) -> None:
        """Add notes to the result, and set fields."""
        assert self.result is not None
        self.result = replace(self.result, notes=(*self.result.notes, *notes), **fields)

    @contextmanager
    def saying_failures(self) -> Iterator[None]:
        """Say a failure of gpumagic in one line: the code's value or exception stays."""
        try:
            yield
        except Exception as failure:
            say(self.shell, f"%cudatime: cannot show the times ({text.named(failure)})")

    def benchmark(self, loop: Loop, plan: Plan, progress: Callable[[float], None]) -> None:
        """Run a loop; its timing is the result, also a partial one, if one repeat is complete.

        ``progress`` is called with the share done, 0 to 1.
        """
        benchmark = Benchmark(loop, plan, progress)
        self.result, complete = None, False
        try:
            benchmark.run()
            complete = True
        finally:
            with self.saying_failures():
                self.result = benchmark.result(loop.compile_time, partial=not complete)

    def deliver(self) -> None:
        """Show the result, and store it where the options say."""
        if self.result is not None:
            with self.saying_failures():
                store(self.magics, self.options.name, self.result)
                hand_over(self.shell, self.result, self.options)


def store(magics: Any, name: str | None, result: CudaTiming) -> None:
    """Store a result: under a name, in place of an earlier one, and for the line of the cell."""
    if name is not None:
        magics.extension.named_timings[name] = result
    timer = magics.extension.cell_timing
    if timer is not None and timer.watching:
        timer.measured.append(result)
