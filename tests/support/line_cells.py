"""Cells whose lines are measured, without a shell."""

from __future__ import annotations

import ast
import contextlib
import linecache
from dataclasses import replace
from typing import Any

from gpumagic.cells.line_sources import cell_source, defined_code, function_source
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.timing.event_timer import read, start, stop
from gpumagic.timing.lines.line_profiler import LineProfiler
from gpumagic.timing.summary import summarize


def measured(source: str, functions: tuple[Any, ...] = (), **names: Any) -> CudaTiming:
    """Run a cell with these names in its namespace, and return its timing with the lines.

    Its first line is 2, as below a magic. What it raises is not raised. ``functions`` are traced,
    too: themselves, or the names of those that the cell defines.
    """
    text = "\n" + source
    tree = ast.parse(text)
    code = compile(tree, "<cell>", "exec")
    linecache.cache["<cell>"] = len(text), None, text.splitlines(keepends=True), "<cell>"
    sources = [cell_source([code], source, 2, tree)]
    for each in functions:
        found = defined_code([code], each) if isinstance(each, str) else each.__code__
        assert found is not None, each
        sources.append(function_source(found.co_name, found))
    profiler = LineProfiler(sources)
    partial = True
    profiler.prepare()
    try:
        started = start()
        profiler.start()
        with contextlib.suppress(Exception):
            exec(code, names)
            partial = False
        profiler.stop(failed=partial)
        timing = summarize([profiler.refined(read(stop(started)))])
        return profiler.added_to(replace(timing, partial=partial))
    finally:
        profiler.close()
