"""``%%gpumem --lines [-f FUNC]``: what is to be traced."""

from __future__ import annotations

import builtins
from typing import Any

from gpumagic.cells.compile import CompiledCell
from gpumagic.errors import SpecError
from gpumagic.memory.line_profiler import LineTracer
from gpumagic.memory.line_sources import Source, cell_source, defined_source, function_source


def tracer(compiled: CompiledCell, functions: list[str]) -> LineTracer:
    """A tracer of the cell and of ``functions``.

    Raises:
        SpecError: there is no such function.
    """
    codes = [code for code in (compiled.body, compiled.last) if code is not None]
    names = dict.fromkeys(functions)  # one named twice is traced once
    cell = cell_source(codes, compiled.source, compiled.first_line, compiled.tree)
    return LineTracer([cell, *(_function(n, codes, compiled) for n in names)])


def _function(name: str, codes: list[Any], compiled: CompiledCell) -> Source:
    try:
        defined_here = defined_source(codes, name)
    except ValueError as error:
        raise SpecError(f"-f {error}") from None
    if defined_here is not None:
        return defined_here
    head, *attributes = name.split(".")
    found: Any = None
    for namespace in (compiled.locals, compiled.globals, vars(builtins)):
        if head in namespace:
            found = namespace[head]
            break
    else:
        raise SpecError(f"-f {name}: there is no {head!r} here")
    for attribute in attributes:
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise SpecError(f"-f {name}: {error}") from None
    try:
        return function_source(name, found)
    except ValueError as error:
        raise SpecError(f"-f {error}") from None
