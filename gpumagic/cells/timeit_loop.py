"""Compile a statement once into a function that runs it any number of times, as ``timeit`` does.

No source text is executed per run, and the statement's variables are local to the function: they
do not enter the user's namespace.
"""

from __future__ import annotations

import ast
import builtins
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from types import CodeType
from typing import Any

from gpumagic.cells.compile import await_allowed, awaits, parse
from gpumagic.errors import SpecError
from gpumagic.system.shell import Shell

#: The function's name in tracebacks, as that of a cell.
_NAME = "<module>"
#: The function; its own names are not the user's.
_OUTLINE = """\
def loop(_gpumagic_ticks, _gpumagic_clock):
    with _gpumagic_clock:
        for _gpumagic_tick in _gpumagic_ticks:
            pass
"""


@dataclass(frozen=True, eq=False, repr=False)
class Loop:
    """A statement, compiled into a loop."""

    function: Callable[[Iterator[None], AbstractContextManager[Any]], Any]
    #: Seconds spent in transforming, parsing and compiling it.
    compile_time: float

    def run(self, count: int, clock: AbstractContextManager[Any] | None = None) -> None:
        """Run the setup once, and then, within ``clock``, the statement ``count`` times."""
        self.function(repeat(None, count), clock or nullcontext())


def compile_loop(
    shell: Shell,
    source: str,
    *,
    header: str | None = None,
    local_ns: dict[str, Any] | None = None,
    setup: str = "",
) -> Loop:
    """Compile code of a notebook for repeated runs.

    ``setup`` runs once before the loop, in the same function; ``header`` is the cell magic's own
    line, of which the setup is a part.

    Raises:
        SyntaxError: as IPython would raise it for the cell; and for ``from x import *``, which
            Python does not allow in a function.
        SpecError: the code awaits.
    """
    started = time.perf_counter()
    # Without a header the setup is shown above the statement in tracebacks.
    tree, name = parse(shell, source, setup or None if header is None else header)
    tree = shell.transform_ast(tree)
    with await_allowed(shell):
        first = shell.compile.ast_parse(shell.transform_cell(setup), name)
    first = shell.transform_ast(first)
    if header is not None:
        _put_on_line_1(first)
    with await_allowed(shell):
        if any(awaits(shell.compile(part, name, "exec")) for part in (first, tree)):
            raise SpecError("repeated runs cannot await; time one run, or asyncio.run(f()) in them")
    namespace = shell.user_ns
    if local_ns is not None and local_ns is not namespace:
        # A line magic inside a function: its variables are global to the loop, which changes
        # neither namespace.
        namespace = {**namespace, **local_ns}
    return _loop(tree, first, lambda part: shell.compile(part, name, "exec"), namespace, started)


def compile_statement(source: str, namespace: dict[str, Any], setup: str = "") -> Loop:
    """Compile Python source into a loop over ``namespace``; a top-level ``await`` is not allowed.

    ``setup`` is source that runs once before the loop, which sees its names.

    Raises:
        SyntaxError: as `compile` raises it.
    """
    started, name = time.perf_counter(), "<cudatime>"
    tree, first = ast.parse(source, name), ast.parse(setup, "<setup>")
    compile(tree, name, "exec")
    return _loop(tree, first, lambda part: compile(part, name, "exec"), namespace, started)


def _loop(
    module: ast.Module,
    setup: ast.Module,
    compiled: Callable[[ast.Module], CodeType],
    namespace: dict[str, Any],
    started: float,
) -> Loop:
    """Return a function with ``module``'s body in a loop, and ``setup`` above that.

    ``module`` has been compiled by itself, and so is ``setup``: ``return`` and ``yield`` are valid
    only in a function, and must not become valid in the loop's.
    """
    compiled(setup)
    function: Any = ast.parse(_OUTLINE)
    _put_on_line_1(function)
    (definition,) = function.body
    (timed,) = definition.body
    (loop,) = timed.body
    definition.name = _NAME
    loop.body = module.body or loop.body
    definition.body = [*setup.body, timed]
    namespace.setdefault("__builtins__", builtins)
    made: dict[str, Any] = {}
    exec(compiled(function), namespace, made)
    return Loop(made[_NAME], time.perf_counter() - started)


def _put_on_line_1(tree: ast.Module) -> None:
    node: Any
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            node.lineno = node.end_lineno = 1
            node.col_offset = node.end_col_offset = 0
