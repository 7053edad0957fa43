"""``%%cudatime --lines [-f FUNC]``: the times of the lines of a single run."""

from __future__ import annotations

import argparse

from gpumagic.cells.compile import CompiledCell
from gpumagic.cells.line_sources import selected_sources
from gpumagic.results import CudaTiming
from gpumagic.timing.lines import LineProfiler


class NoLines:
    """The profiler of a run without ``--lines``: does nothing."""

    def prepare(self) -> None: ...

    def start(self) -> None: ...

    def stop(self, *, failed: bool = False) -> None: ...

    def close(self) -> None: ...

    def release(self) -> None: ...

    def result(self, timing: CudaTiming) -> CudaTiming:
        """Return ``timing`` unchanged."""
        return timing


def profiler(options: argparse.Namespace, cell: CompiledCell) -> LineProfiler | NoLines:
    """Return the profiler of the cell's lines.

    Raises:
        SpecError: there is no such function.
    """
    if not options.lines:
        return NoLines()
    return LineProfiler(selected_sources(cell, options.functions))
