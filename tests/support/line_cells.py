"""Cells whose lines are measured, without a shell."""

from __future__ import annotations

import ast
import contextlib
from typing import Any

from gpumagic.cells.line_sources import cell_source, defined_source, function_source
from gpumagic.results import CudaTiming
from gpumagic.timing.line_profiler import LineProfiler
from gpumagic.timing.run import Stopwatch, summarize


def measured(source: str, functions: tuple[Any, ...] = (), **names: Any) -> CudaTiming:
    """Run a cell with these names in its namespace, and return its timing with the lines.

    Its first line is 2, as below a magic. What it raises is not raised. ``functions`` are traced,
    too: themselves, or the names of those that the cell defines.
    """
    text = "\n" + source
    tree = ast.parse(text)
    code = compile(tree, "<cell>", "exec")
    sources = [cell_source([code], source, 2, tree)]
    for each in functions:
        found = (
            defined_source([code], each)
            if isinstance(each, str)
            else function_source(each.__name__, each)
        )
        assert found is not None, each
        sources.append(found)
    profiler, stopwatch = LineProfiler(sources, names), Stopwatch()
    partial = True
    profiler.prepare()
    try:
        stopwatch.start()
        profiler.start()
        with contextlib.suppress(Exception):
            exec(code, names)
            partial = False
        profiler.stop()
        run = stopwatch.stop()
    finally:
        profiler.close()
    return profiler.result(summarize([run], partial=partial))
