"""A statement compiled once into a function that runs it any number of times, as ``timeit`` does.

No source text is executed per run, and the statement's variables are the function's own: nothing
leaks into the user's namespace. The names that the function needs for itself are no identifiers, so
that they cannot collide with the user's.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

#: The function's name as tracebacks show it: the statement's lines look like a cell's own.
_NAME, _TICKS, _TICK = "<module>", "<ticks>", "<tick>"


@dataclass(frozen=True)
class Loop:
    """A statement, compiled into a loop."""

    function: Callable[[Iterator[None]], Any]
    #: The statement awaits: the loop must be awaited.
    is_async: bool
    #: Seconds spent in transforming, parsing and compiling, where a cell was compiled.
    compile_time: float = 0.0

    def __call__(self, count: int) -> Any:
        """Run the statement ``count`` times; a coroutine that does so if ``is_async``."""
        __tracebackhide__ = True
        return self.function(repeat(None, count))


def as_function(module: ast.Module, *, is_async: bool) -> ast.Module:
    """``module`` with its body inside a function with a loop."""
    ticks = ast.arg(_TICKS)
    arguments = ast.arguments(
        posonlyargs=[], args=[ticks], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    loop = ast.For(
        target=ast.Name(_TICK, ast.Store()),
        iter=ast.Name(_TICKS, ast.Load()),
        body=module.body or [ast.Pass()],
        orelse=[],
    )
    kind: Any = ast.AsyncFunctionDef if is_async else ast.FunctionDef
    function = kind(
        name=_NAME, args=arguments, body=[loop], decorator_list=[], returns=None, type_params=[]
    )
    return ast.fix_missing_locations(ast.Module([function], []))


def take_function(code: Any, namespace: dict[str, Any]) -> Callable[[Iterator[None]], Any]:
    """The function that ``code``, compiled from `as_function`, defines."""
    namespace.setdefault("__builtins__", builtins)
    made: dict[str, Any] = {}
    exec(code, namespace, made)
    function: Callable[[Iterator[None]], Any] = made[_NAME]
    return function


def compile_statement(source: str, namespace: dict[str, Any]) -> Loop:
    """Plain Python source as a loop over ``namespace``; a top-level ``await`` is not allowed.

    Raises:
        SyntaxError: as `compile` raises it.
    """
    name = "<cudatime>"
    tree = ast.parse(source, name)
    # What is valid only inside a function (return, yield) must not become valid by our template.
    compile(tree, name, "exec")
    code = compile(as_function(tree, is_async=False), name, "exec")
    return Loop(take_function(code, namespace), is_async=False)


def of_callable(function: Callable[[], Any]) -> Loop:
    """``function()`` as a loop."""
    if inspect.iscoroutinefunction(function):
        raise TypeError("cudatime runs plain callables; await a coroutine function in a cell")
    return compile_statement("function()", {"function": function})
