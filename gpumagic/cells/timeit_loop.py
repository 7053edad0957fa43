"""Compile a statement once into a function that runs it any number of times, as ``timeit`` does.

No source text is executed per run, and the statement's variables are local to the function: they
do not enter the user's namespace. The function's own names are no valid identifiers, so that they
cannot collide with the user's.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from typing import Any

#: The function's name in tracebacks, as that of a cell.
_NAME, _TICKS, _TICK, _CLOCK = "<module>", "<ticks>", "<tick>", "<clock>"

_Function = Callable[[Iterator[None], AbstractContextManager[Any]], Any]


@dataclass(frozen=True, eq=False, repr=False)
class Loop:
    """A statement, compiled into a loop."""

    function: _Function
    #: Seconds spent in transforming, parsing and compiling a cell.
    compile_time: float = 0.0

    def run(self, count: int, clock: AbstractContextManager[Any] | None = None) -> None:
        """Run the setup once, and then, within ``clock``, the statement ``count`` times."""
        __tracebackhide__ = True
        self.function(repeat(None, count), clock or nullcontext())


def as_function(module: ast.Module, setup: ast.Module | None = None) -> ast.Module:
    """Return ``module`` with its body in a function's loop, and ``setup`` above the loop."""
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(_TICKS), ast.arg(_CLOCK)],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    loop = ast.For(
        target=ast.Name(_TICK, ast.Store()),
        iter=ast.Name(_TICKS, ast.Load()),
        body=module.body or [ast.Pass()],
        orelse=[],
    )
    timed = ast.With(items=[ast.withitem(ast.Name(_CLOCK, ast.Load()))], body=[loop])
    define: Any = ast.FunctionDef  # whose arguments differ between versions of Python
    function = define(
        name=_NAME,
        args=arguments,
        body=[*(setup.body if setup else ()), timed],
        decorator_list=[],
        returns=None,
        type_params=[],
    )
    return ast.fix_missing_locations(ast.Module([function], []))


def defined_function(code: Any, namespace: dict[str, Any]) -> _Function:
    """Return the function that ``code``, compiled from `as_function`, defines."""
    namespace.setdefault("__builtins__", builtins)
    made: dict[str, Any] = {}
    exec(code, namespace, made)
    function: _Function = made[_NAME]
    return function


def compile_statement(source: str, namespace: dict[str, Any], setup: str = "") -> Loop:
    """Compile Python source into a loop over ``namespace``; a top-level ``await`` is not allowed.

    ``setup`` is source that runs once before the loop, which sees its names.

    Raises:
        SyntaxError: as `compile` raises it.
    """
    name = "<cudatime>"
    tree = ast.parse(source, name)
    # return and yield are valid only in a function, and must not become valid in the loop's.
    compile(tree, name, "exec")
    first = ast.parse(setup, "<setup>")
    compile(first, "<setup>", "exec")
    code = compile(as_function(tree, first), name, "exec")
    return Loop(defined_function(code, namespace))


def compile_callable(function: Callable[[], Any], setup: str | Callable[[], Any] = "") -> Loop:
    """Compile ``function()`` into a loop, after ``setup()`` or the source text ``setup``."""
    namespace = {"function": function, "setup": setup}
    return compile_statement(
        "function()", namespace, setup if isinstance(setup, str) else "setup()"
    )
