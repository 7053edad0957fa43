"""The code whose lines are traced: the cell, and the functions that are named with ``-f``.

Statements are traced: each line of a statement stands for the statement's first line.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import re
import tokenize
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

from gpumagic.errors import SpecError
from gpumagic.system import introspection

if TYPE_CHECKING:
    from gpumagic.cells.compile import CompiledCell

_CLASS = "-f {0} is a class; name one of its functions, as {0}.forward"
#: What has lines of its own.
_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


class CodeLine:
    """A statement, by the number of its first line, and how often it ran."""

    __slots__ = ("figures", "hits", "loop", "number", "source")

    def __init__(self, source: CodeSource, number: int) -> None:
        self.source, self.number = source, number
        #: Whether it is the head of a ``for`` loop.
        self.loop = False
        self.hits = 0
        #: What a counter has counted in it, from its first run on.
        self.figures: Any = None


@dataclass(eq=False)
class CodeSource:
    """The lines of the cell or of a function."""

    #: ``cell`` or the function's name.
    name: str
    codes: Sequence[CodeType]
    #: The number of the first line of ``text``.
    first: int
    text: tuple[str, ...]
    #: The text, parsed, with the same line numbers.
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []), repr=False)
    #: By the number of each line of ``text``.
    lines: dict[int, CodeLine] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        heads = _heads(self.tree)
        for number in range(self.first, self.first + len(self.text)):
            first = heads.get(number, number)
            if first not in self.lines:
                self.lines[first] = CodeLine(self, first)
            self.lines[number] = self.lines[first]
        for node in ast.walk(self.tree):
            if not isinstance(node, (ast.For, ast.AsyncFor)) or node.lineno not in self.lines:
                continue
            if heads.get(node.body[0].lineno) != node.lineno:  # else its body, too, is there
                self.lines[node.lineno].loop = True

    def ran(self) -> list[CodeLine]:
        """Return the lines that ran, in order."""
        ran = {line for line in self.lines.values() if line.hits}
        return sorted(ran, key=lambda line: line.number)


def _heads(tree: ast.Module) -> dict[int, int]:
    """Return the first line of a statement, by each line of the statement's head."""
    heads: dict[int, int] = {}
    for node in ast.walk(tree):  # the outer ones first
        if isinstance(node, _STATEMENTS):
            parts = ast.iter_child_nodes(node)
            inner = [_first(each) for each in parts if isinstance(each, _STATEMENTS)]
            first = _first(node)
            # A `case` has no end of its own; its body has, which may be on the same line.
            end = getattr(node, "end_lineno", None) or first
            below = max(min(inner, default=end + 1), getattr(node, "lineno", first) + 1)
            for number in range(first, below):
                heads.setdefault(number, first)
    return heads


def _first(node: object) -> int:
    """Return the first line of a statement, its decorators included."""
    start = node.pattern if isinstance(node, ast.match_case) else node
    decorators = getattr(node, "decorator_list", ())
    return min(int(each.lineno) for each in (start, *decorators))


def cell_source(codes: Sequence[CodeType], text: str, first: int, tree: ast.Module) -> CodeSource:
    """Return the cell, whose first line has the number ``first``."""
    # As Python counts lines; `splitlines` also splits at separators that a string may contain.
    lines = re.split(r"\r\n|\r|\n", text.rstrip("\r\n"))
    return CodeSource("cell", codes, first, tuple(lines), tree)


def selected_sources(cell: CompiledCell, functions: Iterable[str]) -> list[CodeSource]:
    """Return the cell's lines, and those of the functions named with ``-f``.

    Raises:
        SpecError: there is no such function.
    """
    found: dict[int, CodeSource] = {}
    for name in dict.fromkeys(functions):
        code = defined_code(cell.codes, name) or _code_of(name, _value(name, cell))
        if not code.co_flags & inspect.CO_OPTIMIZED:
            raise SpecError(_CLASS.format(name))
        if id(code) not in found:  # its lines are traced once, whatever its names
            found[id(code)] = function_source(name, code)
    return [cell_source(cell.codes, cell.source, cell.first_line, cell.tree), *found.values()]


def defined_code(codes: Iterable[CodeType], name: str) -> CodeType | None:
    """Return the code of a function or class (``f``, ``A.method``) that the cell itself defines."""
    head, _, rest = name.partition(".")
    for code in codes:
        for nested in code.co_consts:
            if isinstance(nested, CodeType) and nested.co_name == head:
                return defined_code([nested], rest) if rest else nested
    return None


def _value(name: str, cell: CompiledCell) -> Any:
    head, *attributes = name.split(".")
    spaces = (cell.locals, cell.globals, vars(builtins))
    space = next((space for space in spaces if head in space), None)
    if space is None:
        raise SpecError(
            f"-f {name}: there is no {head!r} here before this cell runs; define it in an earlier "
            "cell"
        )
    try:
        return functools.reduce(getattr, attributes, space[head])
    except AttributeError as error:
        raise SpecError(f"-f {name}: {error}") from None


def _code_of(name: str, value: Any) -> CodeType:
    """Return a function's code, through decorators; a module's ``forward``.

    The type of ``value`` decides, not its attributes: a module may have any.
    """
    if introspection.is_a(value, type):
        raise SpecError(_CLASS.format(name))
    inner = inspect.unwrap(_called(value))
    inner = _called(inner)  # torch.compile wraps a module
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if not isinstance(code, CodeType):
        raise SpecError(f"-f {name} is no Python function: {type(value).__name__}")
    return code


def _called(value: Any) -> Any:
    """Return the function that a call of a module, or of another object, runs; or itself."""
    if inspect.isroutine(value):
        return value
    return introspection.find(type(value), "forward") or introspection.find(type(value), "__call__")


def function_source(name: str, code: CodeType) -> CodeSource:
    """Return the lines of a function's code, without text where that is not known.

    The text is read from the file as it is now, as in tracebacks.
    """
    # Before Python 3.11 no instruction has the number of the line of ``def``.
    numbers = [code.co_firstlineno, *(line for _, _, line in code.co_lines() if line)]
    try:
        # From Python 3.13 on, all code compiled from strings would have the text of `python -c`.
        lines, first = inspect.getsourcelines(code) if code.co_filename != "<string>" else ([], 0)
    except (OSError, SyntaxError, tokenize.TokenError):  # removed, or other text
        lines, first = [], 0
    text = tuple(line.rstrip("\n") for line in lines)
    tree = _parsed(text, first)
    is_inside = first <= min(numbers) <= max(numbers) < first + len(lines)
    if not (is_inside and _defines(tree, code)):  # the file has changed; %autoreload counts anew
        text, first = ("",) * (max(numbers) - min(numbers) + 1), min(numbers)
        tree = ast.Module([], [])
    return CodeSource(name, (code,), first, text, tree)


def _defines(tree: ast.Module, code: CodeType) -> bool:
    """Return whether the text defines the function of ``code``."""
    kinds: Any = (ast.FunctionDef, ast.AsyncFunctionDef)
    if code.co_name == "<lambda>":  # its text may not stand alone
        return True
    return any(isinstance(each, kinds) and each.name == code.co_name for each in tree.body)


def _parsed(lines: Sequence[str], first: int) -> ast.Module:
    """Return a function's tree; an empty one where its text cannot be parsed."""
    text, before = "\n".join(lines), 1
    if text[:1].isspace():  # a method
        text, before = f"if 1:\n{text}", 2
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the code's were issued when it was compiled
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
    if before > 1:
        tree.body = tree.body[0].body  # type: ignore[attr-defined]
    ast.increment_lineno(tree, first - before)
    return tree
