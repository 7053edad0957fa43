"""``%%cudatime --lines [-f FUNC]``: the times of the lines of a single run."""

from __future__ import annotations

import argparse
from collections import ChainMap
from collections.abc import Collection

from gpumagic.cells.compile import CompiledCell
from gpumagic.errors import SpecError
from gpumagic.magics.named_functions import sources
from gpumagic.results import CudaTiming
from gpumagic.timing.line_profiler import LineProfiler


def check(options: argparse.Namespace, repeating: Collection[str]) -> None:
    """Check that the options go together; ``repeating`` are those that make the run a repeated one.

    Raises:
        SpecError: they do not.
    """
    if options.functions and not options.lines:
        raise SpecError("-f names a function for --lines: %%cudatime --lines -f FUNC")
    if not options.lines:
        return
    if options.cluster:
        raise SpecError(
            "--lines measures this process, not engines; leave --cluster out, or write "
            "%%cudatime --lines in the engines' own code"
        )
    if repeating:
        names = ", ".join(sorted(repeating))
        repeats = f"{names} repeat{'s' * (len(repeating) == 1)} it"
        raise SpecError(f"--lines measures a single run, and {repeats}: leave out {names}")


class NoLines:
    """The profiler of a run without ``--lines``: does nothing."""

    def prepare(self) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self, error: BaseException | None = None) -> None: ...

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
    names = ChainMap(cell.locals, cell.globals)
    return LineProfiler(sources(cell, options.functions), names)
