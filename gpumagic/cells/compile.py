"""Compile and run a cell exactly as IPython does, in two steps, so that a timer can start between.

The same as in IPython: input and AST transforms, magics inside the cell, the file name and line
numbers in tracebacks (the line of the magic is line 1), the last expression's value, a trailing
``;``, top-level ``await``, the user's namespace, and exceptions, which pass unchanged.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from gpumagic.cells.coroutines import run_or_await
from gpumagic.cells.magic_calls import LINE_MAGICS, is_line_call, line_calls, written_strings
from gpumagic.cells.semicolon import take_semicolon
from gpumagic.cells.setup_code import parse_setup
from gpumagic.cells.timeit_loop import Loop, as_function, defined_function
from gpumagic.cells.transform import bound_names, transformed_source
from gpumagic.errors import SpecError

#: The cell magics whose body is Python.
CELL_MAGICS = ("gpu", "cudatime", "gpumem")
#: With this option the code runs on the engines, and the magic returns no coroutine.
_ON_ENGINES = "--cluster"
#: A call of one of our magics whose code may end with ``;``, on a line of its own.
_MAY_BE_SILENT = re.compile(
    rf"\s*(await )?get_ipython\(\)\.run_(line|cell)_magic\('({'|'.join(CELL_MAGICS)})',"
    r".*;.*['\"]\)\s*$"
)
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def cell_of(shell: Any, filename: str) -> int | None:
    """Return the execution number of the cell with this file name; None for any other file."""
    number = getattr(shell.compile, "_filename_map", {}).get(filename)
    return number if isinstance(number, int) else None


class MagicSource(NamedTuple):
    """The code that a magic runs, as it is written on its line and below."""

    source: str
    setup: str = ""
    #: Whether it becomes a loop in a function.
    is_repeated: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class CompiledCell:
    """A compiled cell, which can be run any number of times."""

    body: CodeType | None
    last: CodeType | None
    globals: dict[str, Any]
    locals: dict[str, Any]
    #: Whether a trailing ``;`` suppresses the display of the value.
    silent: bool
    #: Seconds spent in transforming, parsing and compiling.
    compile_time: float
    #: The source as typed; its first line has the number `first_line`.
    source: str = ""
    first_line: int = 1
    #: The parsed source, with the same line numbers.
    tree: ast.Module | None = None

    @property
    def is_async(self) -> bool:
        """Whether the cell awaits at its top level."""
        return _awaits(self.body) or _awaits(self.last)

    async def run(self, scope: AbstractContextManager[Any]) -> Any:
        """Run the cell inside ``scope``; return its last expression's value, None if ``silent``.

        Awaits only if the cell does.
        """
        __tracebackhide__ = True
        body, last, value = self.body, self.last, None
        body_awaits, last_awaits = _awaits(body), _awaits(last)
        with scope:
            if body is not None:
                done = eval(body, self.globals, self.locals)
                if body_awaits:
                    await done
            if last is not None:
                value = eval(last, self.globals, self.locals)
                if last_awaits:
                    value = await value
        return None if self.silent else value

    def run_within(self, scope: AbstractContextManager[Any], finish: Callable[[Any], Any]) -> Any:
        """Run the cell inside ``scope`` and return ``finish(value)``.

        For a cell that awaits, return a coroutine that does so; `MagicCode` has put an ``await``
        before the call of the magic.
        """
        __tracebackhide__ = True

        async def run() -> Any:
            __tracebackhide__ = True
            return finish(await self.run(scope))

        return run_or_await(run, is_async=self.is_async)


def compile_cell(
    shell: Any,
    source: str,
    *,
    header: str | None = None,
    local_ns: dict[str, Any] | None = None,
) -> CompiledCell:
    """Compile ``source``, a cell magic's body or a line magic's statement.

    ``header`` is the cell magic's own line (``"%%cudatime -n 3"``), line 1 in tracebacks, as in
    the notebook.

    Raises:
        SyntaxError: as IPython would raise it for the cell.
        SpecError: the code awaits, but the magic's caller does not.
    """
    __tracebackhide__ = True
    started = time.perf_counter()
    tree, name = _parse(shell, source, header, local_ns or ())
    statements: list[Any] = list(tree.body)
    last: ast.Expression | None = None
    if statements and isinstance(statements[-1], ast.Expr):
        last = ast.Expression(statements.pop().value)
    body = ast.Module(statements, []) if statements else None
    with _await_allowed(shell):
        body_code = None if body is None else shell.compile(body, name, "exec")
        last_code = None if last is None else shell.compile(last, name, "eval")
    compiled = CompiledCell(
        body=body_code,
        last=last_code,
        globals=shell.user_ns,
        locals=shell.user_ns if local_ns is None else local_ns,
        silent=take_semicolon(source)[1],
        compile_time=time.perf_counter() - started,
        source=source,
        first_line=1 if header is None else 2,
        tree=tree,
    )
    if compiled.is_async:
        _check_awaited()
    return compiled


def compile_loop(
    shell: Any,
    source: str,
    *,
    header: str | None = None,
    local_ns: dict[str, Any] | None = None,
    setup: str = "",
) -> Loop:
    """Compile code for repeated runs into a function, as ``%timeit`` does.

    ``setup`` runs once before the loop, in the same function; it may not await.

    Raises:
        SyntaxError: as IPython would raise it for the cell; and for ``from x import *``, which
            Python does not allow in a function.
        SpecError: the code awaits, but the magic's caller does not.
    """
    __tracebackhide__ = True
    started = time.perf_counter()
    written = MagicSource(source, setup, is_repeated=True)
    code, is_async = _loop_code(shell, written, header, local_ns or (), shell.transform_ast)
    if is_async:
        _check_awaited()
    namespace = shell.user_ns
    if local_ns is not None and local_ns is not namespace:
        # A line magic inside a function: its variables are global to the loop, which changes
        # neither namespace.
        namespace = {**namespace, **local_ns}
    function = defined_function(code, namespace)
    return Loop(function, is_async, time.perf_counter() - started)


def _loop_code(
    shell: Any,
    written: MagicSource,
    header: str | None,
    variables: Collection[str],
    transform: Callable[[ast.Module], ast.Module],
) -> tuple[CodeType, bool]:
    """Return the code that defines the loop's function, and whether it awaits."""
    __tracebackhide__ = True
    source, setup, _ = written
    # The setup is part of the header, or is shown above the statement in tracebacks.
    above = setup or None if header is None else header
    tree, name = _read(shell, source, above, {*bound_names(shell, setup), *variables})
    tree = transform(tree)
    first = transform(parse_setup(shell, setup, header, name)) if setup else None
    with _await_allowed(shell):
        # Also refuses what is valid only in a function (return, yield).
        is_async = _awaits(shell.compile(tree, name, "exec"))
    function = as_function(tree, is_async=is_async, setup=first)
    return shell.compile(function, name, "exec"), is_async


def _parse(
    shell: Any, source: str, header: str | None, variables: Collection[str]
) -> tuple[ast.Module, str]:
    """Return the tree after the AST transformers, with the header as line 1, and the file name.

    ``variables`` are names that the code has beside the notebook's.
    """
    __tracebackhide__ = True
    tree, name = _read(shell, source, header, variables)
    tree = shell.transform_ast(tree)
    assert isinstance(tree, ast.Module)
    return tree, name


def _read(
    shell: Any, source: str, header: str | None, variables: Collection[str] = ()
) -> tuple[ast.Module, str]:
    """Return the tree before the AST transformers, with the header as line 1, and the file name."""
    __tracebackhide__ = True
    transformed = transformed_source(shell, source, variables)
    above = "" if header is None else header + "\n"
    name = shell.compile.cache(above + transformed, _cell_number(shell), raw_code=above + source)
    cached: Any = linecache.cache.get(name)
    if cached is not None:  # IPython also splits at line separators inside string literals
        cached[2][:] = [line + "\n" for line in (above + transformed).rstrip("\n").split("\n")]
    with _await_allowed(shell):
        return shell.compile.ast_parse("\n" * above.count("\n") + transformed, name), name


def _cell_number(shell: Any) -> int:
    """Return the running cell's number; IPython 9 has already incremented its counter."""
    running = getattr(shell.displayhook, "exec_result", None)
    number = getattr(running, "execution_count", None)
    return shell.execution_count if number is None else int(number)


def _await_allowed(shell: Any) -> AbstractContextManager[Any]:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0
    context: AbstractContextManager[Any] = shell.compile.extra_flags(flags)
    return context


def _awaits(code: CodeType | None) -> bool:
    """Return whether the code awaits, so that evaluating it gives a coroutine."""
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE)


class MagicCode:
    """An input transformer of IPython that parses the code in the calls of our magics.

    - It puts ``await`` before the call of a magic whose code awaits: IPython runs a cell in its
      event loop only if the cell's own code awaits, and a magic's code is a string there. For
      such code the magic returns a coroutine (`CompiledCell.run_within`).
    - It ends the call with ``;`` if the magic's code ends so: the value of ``-o`` is not displayed,
      but can be assigned.
    - It raises a syntax error in a magic's code as one of the cell: IPython shows the line
      without a traceback, and nothing runs. So it does where Python's compiler gives up.

    ``source(name, line, cell)`` is the code of a magic; None if it runs none in this process.
    """

    def __init__(
        self, shell: Any, source: Callable[[str, str, str | None], MagicSource | None]
    ) -> None:
        self.shell = shell
        self._source = source
        self._prefixes = tuple(f"get_ipython().run_cell_magic('{m}'," for m in CELL_MAGICS)
        names = "|".join(LINE_MAGICS)
        self._line_magic = re.compile(rf"get_ipython\(\)\.run_line_magic\('({names})',")

    def __call__(self, lines: list[str]) -> list[str]:
        try:
            lines = self._with_await(lines)
        except RecursionError:
            raise SyntaxError("the code is nested too deeply for Python's compiler") from None
        if lines and _MAY_BE_SILENT.match(lines[-1]) and _is_silent(lines[-1]):
            lines = [*lines[:-1], lines[-1].rstrip() + ";\n"]
        return lines

    def _with_await(self, lines: list[str]) -> list[str]:
        if lines and lines[0].startswith(self._prefixes):
            return self._cell_magic(lines)
        if any(self._line_magic.search(line) for line in lines):
            return self._line_magics(lines)
        return lines

    def _cell_magic(self, lines: list[str]) -> list[str]:
        try:
            call = ast.parse("".join(lines)).body[0]
        except SyntaxError:
            return lines  # IPython reports it
        written = written_strings(call.value) if isinstance(call, ast.Expr) else None
        if written is None or len(written) != 3:
            return lines  # a call that the user has written, with other arguments
        name, line, body = written
        here = self._source_here(name, line, body)
        awaits = self._awaits(here or MagicSource(body), f"%%{name} {line}")
        return ["await " + lines[0], *lines[1:]] if awaits and here else lines

    def _line_magics(self, lines: list[str]) -> list[str]:
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            return lines  # IPython reports it
        awaitable = {id(call) for call in line_calls(tree)}
        lines = list(lines)
        calls = [node for node in ast.walk(tree) if is_line_call(node)]
        for call in sorted(calls, key=lambda call: call.col_offset, reverse=True):
            name, line = (argument.value for argument in call.args)  # type: ignore[attr-defined]
            here = self._source_here(name, line, None)
            if here is not None and self._awaits(here, None) and id(call) in awaitable:
                written = lines[call.lineno - 1].encode()
                before, after = written[: call.col_offset], written[call.col_offset :]
                lines[call.lineno - 1] = (before + b"await " + after).decode()
        return lines

    def _source_here(self, name: str, line: str, cell: str | None) -> MagicSource | None:
        """Return the code that a magic runs in this process; None if it runs none."""
        if _ON_ENGINES in line.split():
            return None
        try:
            return self._source(name, line, cell)
        except SpecError:
            return None  # the magic reports it

    def _awaits(self, written: MagicSource, header: str | None) -> bool:
        """Return whether the code awaits at its top level.

        Raises:
            SyntaxError: it is no valid code, or only in a function; or not in a loop's function.
        """
        if written.is_repeated:
            return _loop_code(self.shell, written, header, (), lambda tree: tree)[1]
        tree, path = _read(self.shell, written.source, header)
        with _await_allowed(self.shell):
            return _awaits(self.shell.compile(tree, path, "exec"))


def _is_silent(line: str) -> bool:
    """Return whether a magic's code ends with ``;``, apart from comments."""
    try:
        call: Any = ast.parse(line.strip(), mode="eval").body
        written = written_strings(call.value if isinstance(call, ast.Await) else call)
        return take_semicolon(written[-1])[1] if written else False
    except SyntaxError:
        return False


def _check_awaited() -> None:
    """Check that the caller of the magic awaits the coroutine that the magic returns.

    Raises:
        SpecError: the caller does not, so the coroutine would never run.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_name not in ("run_line_magic", "run_cell_magic"):
        if frame.f_back is None:
            return  # no magic
        frame = frame.f_back
    name = frame.f_locals.get("magic_name", "")
    caller = frame.f_back
    if caller is not None and caller.f_code.co_flags & _ASYNC:
        return
    if frame.f_code.co_name == "run_cell_magic":
        raise SpecError(f"%%{name} cannot await here; give it a cell of its own")
    raise SpecError(f"%{name} cannot await here; write it below %%{name}")
