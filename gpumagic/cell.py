"""Compile and run a cell exactly as IPython would, in two steps, so that a clock can start between.

Kept as IPython does it: input and AST transforms, magics inside the cell, the real file name and
line numbers in tracebacks (counted from the cell's first line, the magic's own), the last
expression's value, a trailing ``;``, top-level ``await``, the user's namespace, and the exception,
which passes through untouched.
"""

from __future__ import annotations

import ast
import inspect
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType
from typing import Any

from IPython.core.displayhook import DisplayHook

from gpumagic.loop import Loop, as_function, take_function

#: The cell magics whose body is Python.
CELL_MAGICS = ("gpu", "cudatime", "gpumem")


@dataclass(frozen=True)
class CompiledCell:
    """A cell that is ready to run, any number of times."""

    body: CodeType | None
    last: CodeType | None
    globals: dict[str, Any]
    locals: dict[str, Any]
    #: A trailing ``;``: the value is not to be displayed.
    silent: bool
    #: Seconds spent in transforming, parsing and compiling.
    compile_time: float

    @property
    def is_async(self) -> bool:
        """Whether the cell awaits at its top level, so that it must be run by `run_async`."""
        return any(_is_coroutine(code) for code in (self.body, self.last) if code is not None)

    def run(self) -> Any:
        """Run the cell and return its last expression's value (None if silent)."""
        __tracebackhide__ = True
        if self.body is not None:
            exec(self.body, self.globals, self.locals)
        if self.last is None:
            return None
        value = eval(self.last, self.globals, self.locals)
        return None if self.silent else value

    async def run_async(self) -> Any:
        """`run` for a cell that awaits."""
        __tracebackhide__ = True
        if self.body is not None:
            done = eval(self.body, self.globals, self.locals)
            if _is_coroutine(self.body):
                await done
        if self.last is None:
            return None
        value = eval(self.last, self.globals, self.locals)
        if _is_coroutine(self.last):
            value = await value
        return None if self.silent else value

    def run_within(self, scope: AbstractContextManager[Any], finish: Callable[[Any], Any]) -> Any:
        """Run the cell inside ``scope`` and return ``finish(value)``.

        For a cell that awaits, a coroutine that does so; `CellMagicBodies` has put an ``await``
        before the call of the magic.
        """
        __tracebackhide__ = True
        if self.is_async:

            async def go() -> Any:
                __tracebackhide__ = True
                with scope:
                    value = await self.run_async()
                return finish(value)

            return go()
        with scope:
            value = self.run()
        return finish(value)


def compile_cell(
    shell: Any,
    source: str,
    *,
    header: str | None = None,
    local_ns: dict[str, Any] | None = None,
) -> CompiledCell:
    """Compile ``source``, a cell magic's body or a line magic's statement.

    ``header`` is the cell magic's own line (``"%%cudatime -n 3"``): tracebacks then count lines as
    the notebook does.

    Raises:
        SyntaxError: as IPython would raise it for the cell.
    """
    __tracebackhide__ = True
    started = time.perf_counter()
    tree, name = _parse(shell, source, header)
    statements: list[Any] = list(tree.body)
    last: ast.Expression | None = None
    if statements and isinstance(statements[-1], ast.Expr):
        last = ast.Expression(statements.pop().value)
    body = ast.Module(statements, []) if statements else None
    with _await_allowed(shell):
        body_code = None if body is None else shell.compile(body, name, "exec")
        last_code = None if last is None else shell.compile(last, name, "eval")
    return CompiledCell(
        body=body_code,
        last=last_code,
        globals=shell.user_ns,
        locals=shell.user_ns if local_ns is None else local_ns,
        silent=_ends_with_semicolon(source),
        compile_time=time.perf_counter() - started,
    )


def compile_loop(
    shell: Any,
    source: str,
    *,
    header: str | None = None,
    local_ns: dict[str, Any] | None = None,
    setup: str = "",
) -> Loop:
    """`compile_cell` for code that is to be run many times: as ``%timeit`` does, in a function.

    ``setup`` runs once before the loop, in the same function; it may not await.

    Raises:
        SyntaxError: as IPython would raise it for the cell; and for ``from x import *``, which
            Python does not allow in a function.
    """
    __tracebackhide__ = True
    started = time.perf_counter()
    # The setup's text is part of the header, or else is shown above the statement.
    tree, name = _parse(shell, source, setup or None if header is None else header)
    first = _parse_setup(shell, setup, header, name) if setup else None
    with _await_allowed(shell):
        # Also refuses what is valid only in a function (return, yield).
        is_async = _is_coroutine(shell.compile(tree, name, "exec"))
    code = shell.compile(as_function(tree, is_async=is_async, setup=first), name, "exec")
    namespace = shell.user_ns
    if local_ns is not None and local_ns is not namespace:
        # A line magic inside a function: its variables are global to the loop, which changes
        # neither namespace.
        namespace = {**namespace, **local_ns}
    function = take_function(code, namespace)
    return Loop(function, is_async, time.perf_counter() - started)


def _parse(shell: Any, source: str, header: str | None) -> tuple[ast.Module, str]:
    """The transformed tree, its lines counted from the header's, and its file name."""
    __tracebackhide__ = True
    tree, name = _read(shell, source, header)
    tree = shell.transform_ast(tree)
    assert isinstance(tree, ast.Module)
    return tree, name


def _read(shell: Any, source: str, header: str | None) -> tuple[ast.Module, str]:
    """`_parse` before the user's AST transformers."""
    __tracebackhide__ = True
    transformed = shell.transform_cell(source)
    above = "" if header is None else header + "\n"
    name = shell.compile.cache(above + transformed, _cell_number(shell), raw_code=above + source)
    with _await_allowed(shell):
        return shell.compile.ast_parse("\n" * above.count("\n") + transformed, name), name


def _parse_setup(shell: Any, setup: str, header: str | None, name: str) -> ast.Module:
    """The setup's transformed tree, at its place in the header."""
    __tracebackhide__ = True
    tree = shell.transform_ast(shell.compile.ast_parse(shell.transform_cell(setup), name))
    assert isinstance(tree, ast.Module)
    shell.compile(tree, name, "exec")  # refuses what is valid only in a function
    if header is not None and setup in header:
        before = len(header[: header.index(setup)].encode())
        for node in ast.walk(tree):
            if getattr(node, "lineno", 0) == 1:
                node.col_offset += before  # type: ignore[attr-defined]
            if getattr(node, "end_lineno", 0) == 1:
                node.end_col_offset += before  # type: ignore[attr-defined]
    return tree


def _ends_with_semicolon(source: str) -> bool:
    silent: Any = DisplayHook.semicolon_at_end_of_expression
    return bool(silent(source))


def _cell_number(shell: Any) -> int:
    """The number of the cell that is running; IPython 9 has already counted on by now."""
    running = getattr(shell.displayhook, "exec_result", None)
    number = getattr(running, "execution_count", None)
    return shell.execution_count if number is None else int(number)


def _await_allowed(shell: Any) -> AbstractContextManager[Any]:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0
    context: AbstractContextManager[Any] = shell.compile.extra_flags(flags)
    return context


def _is_coroutine(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_COROUTINE)


class CellMagicBodies:
    """An IPython input transformer that treats the bodies of our cell magics as code, not text.

    - ``await`` is put before the call of a magic whose body awaits: IPython runs a cell in its
      event loop only if the cell's own code awaits, and a cell magic's body is a string to it. For
      such a body the magic returns a coroutine (`CompiledCell.run_within`).
    - A body that does not parse fails here, as a cell that does not parse: IPython shows the line
      and no traceback, and nothing is run.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._prefixes = tuple(f"get_ipython().run_cell_magic('{m}'," for m in CELL_MAGICS)

    def __call__(self, lines: list[str]) -> list[str]:
        if not lines or not lines[0].startswith(self._prefixes):
            return lines
        call = ast.parse("".join(lines)).body[0]
        if not (isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)):
            return lines
        name, line, body = (ast.literal_eval(argument) for argument in call.value.args)
        return ["await " + lines[0], *lines[1:]] if self._awaits(name, line, body) else lines

    def _awaits(self, name: str, line: str, body: str) -> bool:
        """Whether the body awaits at its top level.

        Raises:
            SyntaxError: it does not parse.
        """
        tree, path = _read(self.shell, body, f"%%{name} {line}")
        with _await_allowed(self.shell):
            return _is_coroutine(self.shell.compile(tree, path, "exec"))
