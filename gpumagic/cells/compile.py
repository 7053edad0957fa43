"""Compile a cell exactly as IPython does, apart from running it: a timer can start in between.

The same as in IPython are input and AST transforms, magics inside the cell, the file name and line
numbers in tracebacks (the line of the magic is line 1), the last expression's value, a trailing
``;``, top-level ``await``, the user's namespace, and exceptions, which pass unchanged.
"""

from __future__ import annotations

import ast
import inspect
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from textwrap import dedent
from types import CodeType
from typing import Any, cast

from gpumagic.cells.semicolon import take_semicolon
from gpumagic.cells.tracebacks import take_out_own
from gpumagic.errors import SpecError
from gpumagic.system.shell import Shell


def cell_of(shell: Shell, filename: str) -> int | None:
    """Return the execution number of the cell with this file name; None for any other file."""
    number = getattr(shell.compile, "_filename_map", {}).get(filename)
    return number if isinstance(number, int) else None


def keep_numbers(compiler: Any) -> Callable[[], None]:
    """Keep the number of each cell to come by the file name of its code, as IPython 8 does.

    Returns what undoes it.
    """
    numbers: dict[str, int] = {}
    original = compiler.cache

    def cache(transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        name: str = original(transformed_code, number, raw_code)
        numbers[name] = number
        return name

    def undo() -> None:
        del compiler.cache, compiler._filename_map

    compiler.cache, compiler._filename_map = cache, numbers
    return undo


@dataclass(frozen=True, eq=False, repr=False)
class CompiledCell:
    """A compiled cell, which can be run any number of times."""

    #: To be evaluated one after the other: the statements, and the last expression.
    codes: tuple[CodeType, ...]
    globals: dict[str, Any]
    locals: dict[str, Any]
    #: Whether a trailing ``;`` suppresses the display of the value.
    silent: bool
    #: Seconds spent in transforming, parsing and compiling.
    compile_time: float
    #: The source as typed; its first line has the number `first_line`.
    source: str
    first_line: int
    #: The parsed source, with the same line numbers.
    tree: ast.Module

    @property
    def is_async(self) -> bool:
        """Whether the cell awaits at its top level."""
        return any(map(awaits, self.codes))

    def run(self, scope: AbstractContextManager[Any]) -> Any:
        """Run the cell inside ``scope``; return its last expression's value, None if ``silent``."""
        value = None
        with scope:
            for code in self.codes:
                value = eval(code, self.globals, self.locals)
            if self.silent:  # nobody gets it: it is released as a part of the cell
                value = None
        return value

    def run_within(self, scope: AbstractContextManager[Any], finish: Callable[[Any], Any]) -> Any:
        """Run the cell inside ``scope`` and return ``finish(value)``.

        For a cell that awaits, return a coroutine that does so; `magic_calls` has put an ``await``
        before the call of the magic.
        """
        return self._awaited(scope, finish) if self.is_async else finish(self.run(scope))

    async def _awaited(
        self, scope: AbstractContextManager[Any], finish: Callable[[Any], Any]
    ) -> Any:
        # As `run`: one generator for both would make a RuntimeError of the user's StopIteration.
        __tracebackhide__ = True
        value: Any = None
        try:
            with scope:
                for code in self.codes:
                    value = eval(code, self.globals, self.locals)
                    if awaits(code):
                        value = await value
                if self.silent:
                    value = None
        except BaseException as error:
            take_out_own(error, lambda frame: frame.f_globals is self.globals)
            raise
        return finish(value)

    def check_runs_again(self, *options: str) -> None:
        """Check that the cell can run more than once, if there is one of these options.

        Raises:
            SpecError: it awaits, which the magic's caller can do once.
        """
        if options and self.is_async:
            raise SpecError(f"{options[0]} runs the code again, which cannot await; leave it out")


def compile_cell(
    shell: Shell, source: str, *, header: str | None = None, local_ns: dict[str, Any] | None = None
) -> CompiledCell:
    """Compile ``source``, a cell magic's body or a line magic's statement.

    ``header`` is the cell magic's own line (``"%%cudatime -n 3"``), line 1 in tracebacks, as in
    the notebook.

    Raises:
        SyntaxError: as IPython would raise it for the cell.
        SpecError: a statement awaits: IPython awaits no line magic.
    """
    started = time.perf_counter()
    tree, name = parse(shell, source, header)
    tree = shell.transform_ast(tree)
    statements: list[Any] = list(tree.body)
    shown: str = shell.ast_node_interactivity  # "last_expr_or_assign" shows expressions alone here
    parts: list[Any] = []
    if statements and isinstance(statements[-1], ast.Expr):
        parts = [ast.Expression(statements.pop().value)]
    elif statements and shown == "last":  # a loop shows the values of the expressions in it
        parts = [ast.Interactive([statements.pop()])]
    if statements:
        body = ast.Interactive(statements) if shown == "all" else ast.Module(statements, [])
        parts.insert(0, body)
    kinds = {ast.Interactive: "single", ast.Module: "exec", ast.Expression: "eval"}
    with await_allowed(shell):
        codes = tuple(shell.compile(part, name, kinds[type(part)]) for part in parts)
    compiled = CompiledCell(
        codes=codes,
        globals=shell.user_ns,
        locals=shell.user_ns if local_ns is None else local_ns,
        # An indentation's end would be taken for the last token.
        silent=take_semicolon(dedent(source))[1],
        compile_time=time.perf_counter() - started,
        source=source,
        first_line=1 if header is None else 2,
        tree=tree,
    )
    if compiled.is_async and header is None:
        raise SpecError("a statement cannot await: write it in a cell, below the magic")
    return compiled


def parse(shell: Shell, source: str, header: str | None) -> tuple[ast.Module, str]:
    """Return the tree before the AST transformers, with the header as line 1, and the file name."""
    transformed = _aligned(source, shell.transform_cell(source))
    above = "" if header is None else header + "\n"
    name = shell.compile.cache(above + transformed, _cell_number(shell), raw_code=above + source)
    with await_allowed(shell):
        return shell.compile.ast_parse("\n" * above.count("\n") + transformed, name), name


def awaits(code: CodeType) -> bool:
    """Return whether the code awaits, so that evaluating it gives a coroutine."""
    return bool(code.co_flags & inspect.CO_COROUTINE)


def source_awaits(shell: Shell, source: str, header: str | None) -> bool:
    """Return whether a magic's code awaits at its top level.

    Raises:
        SyntaxError: it is no valid code.
    """
    tree, name = parse(shell, source, header)
    with await_allowed(shell):
        return awaits(shell.compile(tree, name, "exec"))


def _aligned(source: str, transformed: str) -> str:
    """Return ``transformed`` with a blank line for each line of ``source`` that it lacks.

    IPython removes blank lines above a cell, and joins a ``!`` or ``%`` line that a backslash
    continues; the line numbers below would be wrong.
    """
    before, after = (text.rstrip("\n").split("\n") for text in (source, transformed))
    if len(after) >= len(before):
        return transformed
    from difflib import SequenceMatcher

    a, b = ([line.strip() for line in lines] for lines in (before, after))
    lines: list[str] = []
    for _, i, up_to_i, j, up_to_j in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        lines += after[j:up_to_j] + [""] * ((up_to_i - i) - (up_to_j - j))
    return "\n".join(lines) + "\n"


def _cell_number(shell: Shell) -> int:
    """Return the running cell's number; IPython 9 has already incremented its counter."""
    running = getattr(shell.displayhook, "exec_result", None)
    number = getattr(running, "execution_count", None)
    return shell.execution_count if number is None else int(number)


def await_allowed(shell: Shell) -> AbstractContextManager[Any]:
    """Allow ``await`` at the top level of what is compiled in this context, where IPython does."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0
    return cast("AbstractContextManager[Any]", shell.compile.extra_flags(flags))
